#include "ddp/job/detail/connect_on_thread.h"

#include <future>
#include <system_error>
#include <thread>
#include <utility>

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
  std::packaged_task<void()> task(std::move(connect));
  auto connected = task.get_future();
  std::thread(std::move(task)).detach();
  const auto start = std::chrono::steady_clock::now();
  while (connected.wait_for(kConnectGlance) != std::future_status::ready) {
    const std::string reason = why_in_vain();
    TORCH_CHECK(reason.empty(), problem, ": ", reason);
    const auto waited = std::chrono::steady_clock::now() - start;
    if (std::chrono::duration_cast<std::chrono::milliseconds>(waited) >=
        timeout) {
      return false;
    }
  }
  try {
    connected.get();
  } catch (const std::system_error&) {
    throw;  // this rank's own
  } catch (const std::exception&) {
    const auto reason = reason_within(kReasonPatience, why_in_vain);
    TORCH_CHECK(reason.empty(), problem, ": ", reason);
    throw;
  }
  return true;
}

}  // namespace ddp::detail
