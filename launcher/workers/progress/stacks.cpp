#include "launcher/workers/progress/stacks.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "launcher/workers/progress/stack.h"

namespace launcher {
namespace {

constexpr const char* kPatienceTimer = "stacks";
constexpr std::chrono::milliseconds kStackPatience{10'000};
// gdb reads much of a large program; the others mostly wait for the first.
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
    calls_.emplace_back(
        loop_,
        [process = processes[index]] { return stack_of(process); },
        [this, index](const std::optional<std::string>& text) {
          texts_[index] = text.value_or("");
          if (--missing_ == 0) {
            end();
          }
        });
  }
}

Stacks::~Stacks() {
  loop_.disarm_timer(kPatienceTimer);
}

void Stacks::end() {
  loop_.disarm_timer(kPatienceTimer);
  const Handler handler = std::move(handler_);  // it may destroy this object
  const std::vector<std::string> texts = std::move(texts_);
  handler(texts);
}

}  // namespace launcher
