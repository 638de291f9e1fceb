// Preloaded into ddprun. Simulates a name service or a file system that does
// not answer, selected by SLOW: "names", "programs", "logs", "reports", or a
// part of the path of a folder to create. Prints the blocked operation to
// stderr, then waits forever. With SLOW=close, closing a log file fails.
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

[[noreturn]] void wait_for_ever(const char* text, size_t size) {
  syscall(SYS_write, 2, text, size);
  for (;;) {
    pause();
  }
}

bool is_slow(const char* what) {
  const char* slow = getenv("SLOW");
  return slow != nullptr && strcmp(slow, what) == 0;
}

bool has_path(int fd, const char* part) {
  char link[32];
  char path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof(path) - 1);
  path[size < 0 ? 0 : size] = 0;
  return strstr(path, part) != nullptr;
}

bool is_log(int fd) {
  return has_path(fd, "/stdout.log");
}

}  // namespace

extern "C" ssize_t write(int fd, const void* bytes, size_t size) {
  if ((is_slow("logs") && is_log(fd)) ||
      (is_slow("reports") && has_path(fd, "/report.json"))) {
    wait_for_ever("writing\n", 8);
  }
  return syscall(SYS_write, fd, bytes, size);
}

extern "C" int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (is_slow("errors") && strstr(path, "/error.json") != nullptr) {
    wait_for_ever("opening\n", 8);
  }
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

extern "C" int mkdir(const char* path, mode_t mode) {
  const char* slow = getenv("SLOW");
  if (slow != nullptr && strstr(path, slow) != nullptr) {
    wait_for_ever("creating\n", 9);
  }
  return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

extern "C" int close(int fd) {
  const bool is_bad = is_slow("close") && is_log(fd);
  const long result = syscall(SYS_close, fd);
  if (is_bad) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(result);
}

extern "C" int getaddrinfo(const char* host,
                           const char* service,
                           const addrinfo* hints,
                           addrinfo** found) {
  if (is_slow("names") && (hints->ai_flags & AI_NUMERICHOST) == 0) {
    wait_for_ever("looking up\n", 11);
  }
  using Function = decltype(&getaddrinfo);
  const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return next(host, service, hints, found);
}

// The last C library call of a child before its exec, which is a raw system
// call.
extern "C" int dup2(int from, int to) {
  const long copy = syscall(SYS_dup3, from, to, 0);
  if (to == STDERR_FILENO && is_slow("programs")) {
    wait_for_ever("executing\n", 10);
  }
  return static_cast<int>(copy);
}
