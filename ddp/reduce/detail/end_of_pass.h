#pragma once

#include <functional>
#include <memory>

namespace ddp::detail {

/// Calls `on_end` at the end of the backward pass that runs on this thread.
///
/// If that pass is nested (a node of another pass called `backward()`),
/// `on_end` gets true and may return false. Then it is called at the end of
/// the enclosing pass, and so on. It gets false at the end of the outermost
/// pass, or if the pass ends on another thread than it began on; the result is
/// ignored then.
///
/// @returns a pointer that expires when no call will follow, also after an
///   exception has ended the pass without a call.
/// @throws c10::Error outside of a backward pass.
std::weak_ptr<void> at_end_of_pass(std::function<bool(bool is_nested)> on_end);

}  // namespace ddp::detail
