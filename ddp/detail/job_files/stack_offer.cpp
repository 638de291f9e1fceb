#include "ddp/detail/job_files/stack_offer.h"

#include <execinfo.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <utility>

#include "ddp/detail/file_descriptor.h"
#include "ddp/detail/job_files/stack_text.h"

namespace ddp::detail {
namespace {

constexpr int kMostFrames = 64;
// The handler's own, and the kernel's way into it.
constexpr int kFramesOfHandler = 2;

/// Open for the life of the process.
std::atomic<const FileDescriptor*> stack_file{nullptr};
static_assert(decltype(stack_file)::is_always_lock_free);

void write_stack(int) {
  const int error = errno;
  const int file = stack_file.load()->get();
  std::array<void*, kMostFrames> frames;
  const int count = ::backtrace(frames.data(), kMostFrames);
  const int skipped = std::min(kFramesOfHandler, count);
  // The calls, not what comes after them, which may be another function.
  for (int at = skipped + 1; at < count; ++at) {
    frames[static_cast<size_t>(at)] =
        static_cast<char*>(frames[static_cast<size_t>(at)]) - 1;
  }
  ::backtrace_symbols_fd(frames.data() + skipped, count - skipped, file);
  if (::write(file, kStackEnd.data(), kStackEnd.size()) < 0) {
    // Who reads does not wait for long.
  }
  errno = error;
}

/// 0: none.
int free_signal() {
  sigset_t blocked;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  for (int number = SIGRTMAX; number >= SIGRTMIN; --number) {
    struct sigaction current {};
    if (::sigaction(number, nullptr, &current) == 0 &&
        current.sa_handler == SIG_DFL && ::sigismember(&blocked, number) == 0) {
      return number;
    }
  }
  return 0;
}

bool catch_signal(int number) {
  struct sigaction action {};
  action.sa_handler = write_stack;
  action.sa_flags = SA_RESTART;
  ::sigfillset(&action.sa_mask);
  return ::sigaction(number, &action, nullptr) == 0;
}

bool write_offer(const FileDescriptor& file, int number) {
  std::array<char, 16> line;
  const auto end =
      std::to_chars(line.data(), line.data() + line.size() - 1, number).ptr;
  *end = '\n';
  const auto size = static_cast<size_t>(end + 1 - line.data());
  return ::write(file.get(), line.data(), size) == static_cast<ssize_t>(size);
}

}  // namespace

bool offer_stack(const std::string& path) noexcept {
  FileDescriptor file(::open(
      path.c_str(),
      O_WRONLY | O_APPEND | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  const int number = free_signal();
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      number == 0 || stack_file.load() != nullptr) {
    return false;
  }
  // The first call loads the unwinder, which no handler may.
  void* frame = nullptr;
  ::backtrace(&frame, 1);
  stack_file = new FileDescriptor(std::move(file));
  return catch_signal(number) && write_offer(*stack_file.load(), number);
}

}  // namespace ddp::detail
