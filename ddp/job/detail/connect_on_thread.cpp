#include "ddp/job/detail/connect_on_thread.h"

#include <system_error>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>

#include "ddp/base/background_task.h"

namespace ddp::detail {
namespace {

constexpr std::chrono::milliseconds kPollInterval{50};
/// A connection to a lost rank breaks before the report of the loss arrives.
constexpr std::chrono::milliseconds kReasonPatience{2'000};

std::string reason_soon(const PeerFailure& peer_failure) {
  const auto deadline = std::chrono::steady_clock::now() + kReasonPatience;
  std::string reason = peer_failure();
  while (reason.empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kPollInterval);
    reason = peer_failure();
  }
  return reason;
}

}  // namespace

bool connect_on_thread(std::function<void()> connect,
                       const PeerFailure& peer_failure,
                       std::chrono::milliseconds timeout,
                       const std::string& problem) {
  if (!peer_failure) {
    connect();
    return true;
  }
  BackgroundTask task;  // may be abandoned: `connect` owns its captures
  task.start(std::move(connect));
  const auto is_connected = [&] {
    try {
      return task.finish(kPollInterval);
    } catch (const std::exception& error) {
      const auto* system = dynamic_cast<const std::system_error*>(&error);
      if (system != nullptr &&
          system->code() == std::errc::resource_unavailable_try_again) {
        throw;  // this rank itself could not start a thread
      }
      const auto reason = reason_soon(peer_failure);
      TORCH_CHECK(reason.empty(), problem, ": ", reason);
      throw;
    }
  };
  const auto start = std::chrono::steady_clock::now();
  while (!is_connected()) {
    const std::string reason = peer_failure();
    TORCH_CHECK(reason.empty(), problem, ": ", reason);
    const auto waited = std::chrono::steady_clock::now() - start;
    if (std::chrono::duration_cast<std::chrono::milliseconds>(waited) >=
        timeout) {
      return false;
    }
  }
  return true;
}

}  // namespace ddp::detail
