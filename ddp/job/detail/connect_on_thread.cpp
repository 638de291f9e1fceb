#include "ddp/job/detail/connect_on_thread.h"

#include <system_error>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>

#include "ddp/base/background_task.h"

namespace ddp::detail {
namespace {

constexpr std::chrono::milliseconds kConnectGlance{50};
/// A connection to a lost rank breaks before the report of the loss arrives.
constexpr std::chrono::milliseconds kReasonPatience{2'000};

std::string reason_soon(const VainCheck& why_in_vain) {
  const auto deadline = std::chrono::steady_clock::now() + kReasonPatience;
  std::string reason = why_in_vain();
  while (reason.empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kConnectGlance);
    reason = why_in_vain();
  }
  return reason;
}

}  // namespace

bool connect_on_thread(std::function<void()> connect,
                       const VainCheck& why_in_vain,
                       std::chrono::milliseconds timeout,
                       const std::string& problem) {
  if (!why_in_vain) {
    connect();
    return true;
  }
  BackgroundTask task;  // may be abandoned: `connect` owns its captures
  task.start(std::move(connect));
  const auto is_connected = [&] {
    try {
      return task.finish(kConnectGlance);
    } catch (const std::system_error&) {
      throw;  // an error of this rank itself
    } catch (const std::exception&) {
      const auto reason = reason_soon(why_in_vain);
      TORCH_CHECK(reason.empty(), problem, ": ", reason);
      throw;
    }
  };
  const auto start = std::chrono::steady_clock::now();
  while (!is_connected()) {
    const std::string reason = why_in_vain();
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
