#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace ddp::detail {

/// Returns why a wait for other ranks is in vain, in one line, or "" while it
/// is not.
using VainCheck = std::function<std::string()>;

/// Runs `connect`, which cannot be cancelled, on a thread of its own and waits
/// for it. If `why_in_vain` returns a reason meanwhile, the thread is abandoned
/// together with the captures of `connect`. Without a `why_in_vain`, `connect`
/// runs on the calling thread.
///
/// @returns false if `connect` has not returned within `timeout`; the thread is
///   abandoned.
/// @throws c10::Error with `problem` and the reason of `why_in_vain`; otherwise
///   the exception of `connect`, unless a reason arrives soon after it.
bool connect_on_thread(std::function<void()> connect,
                       const VainCheck& why_in_vain,
                       std::chrono::milliseconds timeout,
                       const std::string& problem);

}  // namespace ddp::detail
