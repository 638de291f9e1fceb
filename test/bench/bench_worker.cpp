// bench_worker PREFIX: a worker of the launcher benchmark. At its start it
// writes the file PREFIX + rank + "." + restart. At SIGTERM it writes the same
// file name with ".stopped" appended, and exits. Both files contain the time
// (CLOCK_MONOTONIC, nanoseconds), the process id and a newline.
//
// Uses no C library: on a virtual machine, the cache queries of a starting C
// library take longer than the creation of a process.
#include <fcntl.h>
#include <linux/time_types.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

#include <cstddef>
#include <cstdint>

#ifndef __x86_64__
#include <unistd.h>
#endif

namespace {

#ifdef __x86_64__
long call(long number, long a = 0, long b = 0, long c = 0, long d = 0) {
  long result = 0;
  register long fourth __asm__("r10") = d;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                   : "rcx", "r11", "memory");
  return result;
}
#else
long call(long number, long a = 0, long b = 0, long c = 0, long d = 0) {
  return ::syscall(number, a, b, c, d);
}
#endif

long address(const void* of) {
  return reinterpret_cast<long>(of);
}

/// A text buffer of fixed size; text that does not fit is dropped.
class Text {
 public:
  Text& add(const char* more) {
    for (; *more != '\0'; ++more) {
      add(*more);
    }
    return *this;
  }

  Text& add(char more) {
    if (size_ + 1 < sizeof(text_)) {
      text_[size_++] = more;
      text_[size_] = '\0';
    }
    return *this;
  }

  Text& add_number(uint64_t number) {
    if (number >= 10) {
      add_number(number / 10);
    }
    return add(static_cast<char>('0' + number % 10));
  }

  const char* get() const { return text_; }
  long size() const { return static_cast<long>(size_); }

 private:
  std::size_t size_ = 0;
  char text_[4096];
};

bool write_stamp(const char* path) {
  __kernel_timespec now;
  call(SYS_clock_gettime, CLOCK_MONOTONIC, address(&now));
  Text line;
  line.add_number(static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 +
                  static_cast<uint64_t>(now.tv_nsec))
      .add(' ')
      .add_number(static_cast<uint64_t>(call(SYS_getpid)))
      .add('\n');
  const long file = call(SYS_openat,
                         AT_FDCWD,
                         address(path),
                         O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                         0600);
  return file >= 0 &&
         call(SYS_write, file, address(line.get()), line.size()) == line.size();
}

/// Returns the value of a variable, or "0" if it is not set.
const char* variable(const char* const* environment, const char* name) {
  for (; *environment != nullptr; ++environment) {
    const char* text = *environment;
    const char* wanted = name;
    while (*wanted != '\0' && *text == *wanted) {
      ++text;
      ++wanted;
    }
    if (*wanted == '\0' && *text == '=') {
      return text + 1;
    }
  }
  return "0";
}

int work(const char* prefix, const char* const* environment) {
  const uint64_t stop = uint64_t{1} << (SIGTERM - 1);
  call(SYS_rt_sigprocmask, SIG_BLOCK, address(&stop), 0, sizeof(stop));
  Text path;
  path.add(prefix)
      .add(variable(environment, "RANK"))
      .add('.')
      .add(variable(environment, "TORCHELASTIC_RESTART_COUNT"));
  if (!write_stamp(path.get())) {
    return 1;
  }
  call(SYS_rt_sigtimedwait, address(&stop), 0, 0, sizeof(stop));
  return write_stamp(path.add(".stopped").get()) ? 0 : 1;
}

}  // namespace

#ifdef __x86_64__
extern "C" {

/// @param stack  contains argc, argv, 0, and the environment
__attribute__((used)) void start(const long* stack) {
  const auto* argv = reinterpret_cast<const char* const*>(stack + 1);
  const long argc = stack[0];
  call(SYS_exit_group, argc == 2 ? work(argv[1], argv + argc + 1) : 2);
}

void _start();
}

__asm__(
    ".globl _start\n"
    "_start:\n"
    "  xor %ebp, %ebp\n"
    "  mov %rsp, %rdi\n"
    "  and $-16, %rsp\n"
    "  call start\n");
#else
int main(int argc, char** argv) {
  return argc == 2 ? work(argv[1], environ) : 2;
}
#endif
