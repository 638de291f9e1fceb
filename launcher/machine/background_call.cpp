#include "launcher/machine/background_call.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string_view>
#include <utility>

#include "launcher/machine/helper.h"

namespace launcher {
namespace {

/// Returns false if the other end is closed.
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
                                const Fd& result) {
  // Exit without unwinding: destructors must not clean up the parent's
  // resources.
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
  pid_ = fork_helper(pipe.write.get());
  if (pid_ == 0) {
    call_and_exit(call, pipe.write);
  }
  result_ = std::move(pipe.read);
  watch_ = loop_.watch(result_.get(), EPOLLIN, [this] { read(); });
}

BackgroundCall::~BackgroundCall() {
  loop_.unwatch(watch_);
  if (pid_ != 0) {
    ::kill(pid_, SIGKILL);
    reap_helper(pid_);
  }
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
      reap_helper(std::exchange(pid_, 0)) ? std::optional(std::move(text_))
                                          : std::nullopt;
  // The handler may destroy this object.
  const Handler handler = std::move(handler_);
  handler(result);
}

}  // namespace launcher
