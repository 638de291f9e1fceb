#include "launcher/workers/progress/stacks.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "launcher/workers/progress/stack.h"

namespace launcher {
namespace {

constexpr const char* kPatienceTimer = "stacks";
constexpr std::chrono::milliseconds kStackPatience{10'000};
// Enough: gdb reads much data of a large program, and hung workers mostly wait
// for the first one.
constexpr size_t kMostCalls = 4;

}  // namespace

Stacks::Stacks(EventLoop& loop,
               const std::vector<pid_t>& processes,
               Handler handler)
    : loop_(loop),
      handler_(std::move(handler)),
      texts_(processes.size()),
      missing_(std::min(processes.size(), kMostCalls)) {
  loop_.arm_timer(kPatienceTimer, kStackPatience, [this] { end(); });
  for (size_t index = 0; index < std::min(processes.size(), kMostCalls);
       ++index) {
    try {
      calls_.emplace_back(
          loop_,
          [process = processes[index]] { return stack_of(process); },
          [this, index](const std::optional<std::string>& text) {
            texts_[index] = text.value_or("");
            if (--missing_ == 0) {
              end();
            }
          });
    } catch (const std::system_error&) {
      --missing_;  // at a limit of processes; the report has no stack then
    }
  }
  if (missing_ == 0) {
    loop_.arm_timer(kPatienceTimer, {}, [this] { end(); });
  }
}

Stacks::~Stacks() {
  loop_.disarm_timer(kPatienceTimer);
}

void Stacks::end() {
  loop_.disarm_timer(kPatienceTimer);
  // The handler may destroy this object.
  const Handler handler = std::move(handler_);
  const std::vector<std::string> texts = std::move(texts_);
  handler(texts);
}

}  // namespace launcher
