#pragma once

#include <functional>
#include <memory>

namespace ddp::detail {

/// Calls `is_over` at the end of the backward pass that runs on this thread.
/// Where that is inside another one (a node of which called `backward()`), it
/// is given true and may say no: then it is called at the end of that one, and
/// so on. The outermost pass, or one that ends on another thread than it began
/// on, is given false.
///
/// @returns what lives until `is_over` has said yes, or has been given false,
///   or an exception has ended the pass without a call.
/// @throws c10::Error outside of a backward pass.
std::weak_ptr<void> at_end_of_pass(std::function<bool(bool is_nested)> is_over);

}  // namespace ddp::detail
