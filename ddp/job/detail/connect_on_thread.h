#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace ddp::detail {

/// Returns which rank can no longer be connected and why, in one line; "" while
/// all can.
using PeerFailure = std::function<std::string()>;

/// Runs `connect`, which cannot be cancelled, on a thread of its own and waits
/// for it. If `peer_failure` returns a reason meanwhile, the thread is
/// abandoned together with the captures of `connect`. Without a `peer_failure`,
/// `connect` runs on the calling thread.
///
/// @returns false if `connect` has not returned within `timeout`; the thread is
///   abandoned.
/// @throws c10::Error with `problem` and the reason of `peer_failure`; else the
///   exception of `connect`, unless a reason arrives soon after it.
bool connect_on_thread(std::function<void()> connect,
                       const PeerFailure& peer_failure,
                       std::chrono::milliseconds timeout,
                       const std::string& problem);

}  // namespace ddp::detail
