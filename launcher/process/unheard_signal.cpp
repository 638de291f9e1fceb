#include "launcher/process/unheard_signal.h"

#include <cstdint>
#include <cstdlib>

#include "launcher/text_file.h"

namespace launcher {
namespace {

/// The mask behind `name` at the start of a line, in hexadecimal digits.
std::uint64_t mask_of(const std::string& status, const std::string& name) {
  const auto at = status.find("\n" + name);
  return at == std::string::npos
             ? 0
             : std::strtoull(
                   status.c_str() + at + 1 + name.size(), nullptr, 16);
}

}  // namespace

int UnheardSignal::look(bool is_pending) {
  if (!is_pending) {
    number_ = 0;
    return 0;
  }
  return ++looks_;
}

bool is_pending(const std::string& status, int number) {
  const std::uint64_t waiting =
      mask_of(status, "SigPnd:") | mask_of(status, "ShdPnd:");
  return ((waiting >> (number - 1)) & 1) != 0;
}

bool is_pending(pid_t pid, int number) {
  return is_pending(read_text("/proc/" + std::to_string(pid) + "/status"),
                    number);
}

}  // namespace launcher
