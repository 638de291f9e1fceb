#include "launcher/machine/process_state.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

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

std::vector<int> open_descriptors() {
  std::vector<int> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"),
                                                   ::closedir);
  const int own = folder ? ::dirfd(folder.get()) : -1;
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    const int fd = std::atoi(entry->d_name);
    if (fd != own) {
      found.push_back(fd);
    }
  }
  if (!folder) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = 0; fd < static_cast<int>(std::min<rlim_t>(limit.rlim_cur,
                                                            rlim_t{1} << 16));
         ++fd) {
      found.push_back(fd);
    }
  }
  return found;
}

}  // namespace launcher
