#include "samples/support/socket_bytes.h"

#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <memory>

namespace samples {

int64_t socket_bytes_sent() {
  int64_t sum = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> files(::opendir("/proc/self/fd"),
                                                  ::closedir);
  while (const dirent* entry = files ? ::readdir(files.get()) : nullptr) {
    tcp_info info{};
    socklen_t size = sizeof(info);
    // Fails for descriptors that are not TCP sockets.
    if (::getsockopt(
            std::atoi(entry->d_name), IPPROTO_TCP, TCP_INFO, &info, &size) ==
        0) {
      sum += static_cast<int64_t>(info.tcpi_bytes_sent) -
             static_cast<int64_t>(info.tcpi_bytes_retrans);
    }
  }
  return sum;
}

}  // namespace samples
