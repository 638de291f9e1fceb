#include "launcher/progress/process_state.h"

#include <unistd.h>

#include "launcher/text_file.h"

namespace launcher {

char state_in_stat(std::string_view stat) {
  // The program's name, in brackets, may hold anything.
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string_view::npos && name_end + 2 < stat.size()
             ? stat[name_end + 2]
             : '\0';
}

bool is_stopped(pid_t pid) {
  return state_in_stat(read_text("/proc/" + std::to_string(pid) + "/stat")) ==
         'T';
}

pid_t reporter_of(pid_t worker, pid_t named) {
  return named > 0 && ::getsid(named) == worker ? named : worker;
}

}  // namespace launcher
