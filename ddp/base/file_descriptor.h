#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

// Includes no LibTorch: ddprun uses it too.
namespace ddp::detail {

/// Owns a file descriptor and closes it on destruction.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  /// Gives the descriptor to the caller, which closes it.
  int release() { return std::exchange(fd_, -1); }

  void reset(int fd = -1) {
    if (fd_ >= 0) {
      ::close(fd_);
    }
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

/// Returns `result`.
/// @throws std::system_error with `attempt` and errno if `result` is negative.
inline int check(int result, const std::string& attempt) {
  if (result < 0) {
    throw std::system_error(errno, std::generic_category(), attempt);
  }
  return result;
}

/// Both ends of a pipe, closed on exec.
struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

/// @throws std::system_error if too many files are open.
inline Pipe make_pipe() {
  int ends[2];
  check(::pipe2(ends, O_CLOEXEC), "pipe");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// Repeats a call that returns -1 and sets errno while signals interrupt it.
template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

}  // namespace ddp::detail
