#include "launcher/machine/process_state.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "launcher/base/text_file.h"

namespace launcher {

char state_in_stat(std::string_view stat) {
  // The program's name, in brackets, may contain any characters.
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string_view::npos && name_end + 2 < stat.size()
             ? stat[name_end + 2]
             : '\0';
}

bool is_stopped(pid_t pid) {
  return state_in_stat(read_text("/proc/" + std::to_string(pid) + "/stat")) ==
         'T';
}

bool names_signal(const std::string& status,
                  const std::string& mask,
                  int number) {
  const size_t at = status.find("\n" + mask);
  const std::uint64_t signals =
      at == std::string::npos
          ? 0
          : std::strtoull(status.c_str() + at + 1 + mask.size(), nullptr, 16);
  return ((signals >> (number - 1)) & 1) != 0;
}

bool catches_signal(pid_t pid, int number) {
  return names_signal(
      read_text("/proc/" + std::to_string(pid) + "/status"), "SigCgt:", number);
}

pid_t reporter_of(pid_t worker, pid_t named) {
  return named > 0 && ::getsid(named) == worker ? named : worker;
}

}  // namespace launcher
