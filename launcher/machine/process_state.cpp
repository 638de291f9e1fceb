#include "launcher/machine/process_state.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
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

std::string name_of(pid_t pid) {
  const std::string line = read_text("/proc/" + std::to_string(pid) + "/comm");
  return line.substr(0, line.rfind('\n'));
}

bool is_stopped(pid_t pid) {
  return state_in_stat(read_text("/proc/" + std::to_string(pid) + "/stat")) ==
         'T';
}

bool catches_signal(pid_t pid, int number) {
  const std::string mask = "\nSigCgt:";
  const std::string status =
      read_text("/proc/" + std::to_string(pid) + "/status");
  const size_t at = status.find(mask);
  const std::uint64_t signals =
      at == std::string::npos
          ? 0
          : std::strtoull(status.c_str() + at + mask.size(), nullptr, 16);
  return ((signals >> (number - 1)) & 1) != 0;
}

bool runs_commands(pid_t pid) {
  std::error_code error;
  const std::string path = std::filesystem::read_symlink(
      "/proc/" + std::to_string(pid) + "/exe", error);
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::string known = " sh bash dash zsh ksh93 mksh busybox make xargs ";
  return known.find(" " + name + " ") != std::string::npos;
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
