#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "ddp/job/monitored_store.h"

namespace ddp::detail {

/// Runs `connect`, which cannot be called off, on a thread of its own, and
/// waits for its end. Once the wait is in vain the thread is left behind, with
/// what `connect` owns. Without a `why_in_vain` it runs on this thread.
///
/// @returns false when it has not ended within `timeout`; the thread is left
///   behind then, too.
/// @throws c10::Error with `problem` and the reason when the wait is in vain;
///   else what `connect` throws, a reason that is heard of soon after it
///   instead.
bool connect_on_thread(std::function<void()> connect,
                       const VainCheck& why_in_vain,
                       std::chrono::milliseconds timeout,
                       const std::string& problem);

}  // namespace ddp::detail
