#include "ddp/job/detail/connect_on_thread.h"

#include <system_error>
#include <utility>

#include "ddp/base/background_task.h"

namespace ddp::detail {
namespace {

constexpr std::chrono::milliseconds kConnectGlance{50};

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
      const auto reason = reason_within(kReasonPatience, why_in_vain);
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
