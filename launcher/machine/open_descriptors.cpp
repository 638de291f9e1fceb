#include "launcher/machine/open_descriptors.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace launcher {

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
