#include "launcher/status/status_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

namespace launcher {
namespace {

constexpr int kMostWaiting = 16;

/// A socket's path has 107 bytes. A longer one goes through the open folder.
class UnixAddress {
 public:
  explicit UnixAddress(const std::string& path) {
    address_.sun_family = AF_UNIX;
    std::string name = path;
    if (name.size() >= sizeof(address_.sun_path)) {
      const std::filesystem::path full(path);
      folder_ = Fd(
          ::open(full.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      name = "/proc/self/fd/" + std::to_string(folder_.get()) + "/" +
             full.filename().string();
    }
    name.resize(std::min(name.size(), sizeof(address_.sun_path) - 1));
    std::memcpy(address_.sun_path, name.c_str(), name.size() + 1);
  }

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&address_);
  }
  static constexpr socklen_t kSize = sizeof(sockaddr_un);

 private:
  sockaddr_un address_{};
  Fd folder_;
};

Fd unix_socket() {
  return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// Closes a socket without touching errno.
Fd failed(Fd socket) {
  const int error = errno;
  socket.reset();
  errno = error;
  return socket;
}

}  // namespace

Fd listen_at_path(const std::string& path) {
  Fd socket = unix_socket();
  if (!socket) {
    return socket;
  }
  const UnixAddress address(path);
  // Before bind(), so that it is never anybody else's.
  const bool listens =
      ::fchmod(socket.get(), 0600) == 0 &&
      ::bind(socket.get(), address.get(), UnixAddress::kSize) == 0 &&
      ::listen(socket.get(), kMostWaiting) == 0;
  return listens ? std::move(socket) : failed(std::move(socket));
}

Fd connect_to_path(const std::string& path) {
  Fd socket = unix_socket();
  if (!socket) {
    return socket;
  }
  const UnixAddress address(path);
  return retry_interrupted([&] {
           return ::connect(socket.get(), address.get(), UnixAddress::kSize);
         }) == 0
             ? std::move(socket)
             : failed(std::move(socket));
}

pid_t peer_of(const Fd& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0
             ? peer.pid
             : 0;
}

bool is_job_folder(std::string_view name) {
  return name.rfind("ddprun_", 0) == 0;
}

std::vector<std::string> listening_jobs(std::string_view table) {
  constexpr unsigned long kListens = 0x10000;  // the kernel's __SO_ACCEPTCON
  std::vector<std::string> paths;
  std::istringstream lines{std::string(table)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, count, protocol, type, state, inode, path;
    unsigned long flags = 0;
    words >> number >> count >> protocol >> std::hex >> flags >> type >>
        state >> inode >> std::ws;
    std::getline(words, path);
    const std::filesystem::path full(path);
    if (words && (flags & kListens) != 0 && full.is_absolute() &&
        full.filename() == kStatusSocketName &&
        is_job_folder(full.parent_path().filename().string())) {
      paths.push_back(path);
    }
  }
  return paths;
}

}  // namespace launcher
