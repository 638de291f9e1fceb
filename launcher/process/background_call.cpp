#include "launcher/process/background_call.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string_view>
#include <utility>

namespace launcher {
namespace {

/// False when the other end is closed.
bool write_all(const Fd& result, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(result.get(), text.data(), text.size());
    if (written < 0) {
      return false;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

[[noreturn]] void call_and_exit(const std::function<std::string()>& call,
                                const Fd& result,
                                pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(1);  // ddprun died before the line above
  }
  // A connection that ddprun ends would stay open here, and a port taken.
  const auto kept = static_cast<unsigned>(result.get());
  if (kept > STDERR_FILENO + 1) {
    ::syscall(SYS_close_range, STDERR_FILENO + 1U, kept - 1, 0U);
  }
  ::syscall(SYS_close_range, kept + 1, ~0U, 0U);
  // Nothing of what the parent would clean up may be unwound here.
  try {
    ::_exit(write_all(result, call()) ? 0 : 1);
  } catch (...) {
    ::_exit(1);
  }
}

}  // namespace

BackgroundCall::BackgroundCall(EventLoop& loop,
                               const std::function<std::string()>& call,
                               Handler handler)
    : loop_(loop), handler_(std::move(handler)) {
  Pipe pipe = make_pipe();
  check(::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK), "fcntl");
  const pid_t parent = ::getpid();
  // A fork whose end sends no signal.
  pid_ = static_cast<pid_t>(
      check(static_cast<int>(::syscall(SYS_clone, 0UL, 0UL, 0UL, 0UL, 0UL)),
            "cannot start a process"));
  if (pid_ == 0) {
    call_and_exit(call, pipe.write, parent);
  }
  result_ = std::move(pipe.read);
  watch_ = loop_.watch(result_.get(), EPOLLIN, [this] { read(); });
}

BackgroundCall::~BackgroundCall() {
  loop_.unwatch(watch_);
  if (pid_ != 0) {
    ::kill(pid_, SIGKILL);
    reap();
  }
}

bool BackgroundCall::reap() {
  int status = 0;
  const pid_t pid = std::exchange(pid_, 0);
  return retry_interrupted([&] { return ::waitpid(pid, &status, __WCLONE); }) ==
             pid &&
         WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void BackgroundCall::read() {
  std::array<char, 4096> piece;
  const ssize_t size = retry_interrupted(
      [&] { return ::read(result_.get(), piece.data(), piece.size()); });
  if (size > 0) {
    text_.append(piece.data(), static_cast<size_t>(size));
    return;
  }
  if (size < 0 && errno == EAGAIN) {
    return;
  }
  loop_.unwatch(std::exchange(watch_, 0));
  const std::optional<std::string> result =
      reap() ? std::optional(std::move(text_)) : std::nullopt;
  const Handler handler = std::move(handler_);  // it may destroy this object
  handler(result);
}

}  // namespace launcher
