#include "launcher/machine/pending_signal.h"

#include "launcher/base/text_file.h"
#include "launcher/machine/process_state.h"

namespace launcher {
int PendingSignal::record_check(bool is_pending) {
  if (!is_pending) {
    number_ = 0;
    return 0;
  }
  return ++looks_;
}

bool is_pending(const std::string& status, int number) {
  return names_signal(status, "SigPnd:", number) ||
         names_signal(status, "ShdPnd:", number);
}

bool is_pending(pid_t pid, int number) {
  return is_pending(read_text("/proc/" + std::to_string(pid) + "/status"),
                    number);
}

}  // namespace launcher
