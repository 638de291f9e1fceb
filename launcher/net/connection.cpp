#include "launcher/net/connection.h"

#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "ddp/base/net/tcp.h"

namespace launcher {
namespace {

constexpr size_t kMostUnsent = 1 << 20;

/// Returns a timer name that no other connection has.
std::string next_timer() {
  static uint64_t count = 0;
  return "connection " + std::to_string(++count);
}

}  // namespace

std::string end_text(int error) {
  return error == 0 ? "closed by the other end" : std::strerror(error);
}

Connection::Connection(EventLoop& loop,
                       Fd socket,
                       State state,
                       size_t longest_line,
                       Handlers handlers)
    : loop_(loop),
      socket_(std::move(socket)),
      state_(state),
      longest_line_(longest_line),
      handlers_(std::move(handlers)) {
  if (socket_) {
    watch();
    return;
  }
  const int error = errno;
  state_ = State::connecting;
  failure_ = next_timer();
  loop_.arm_timer(
      failure_, std::chrono::milliseconds(0), [this, error] { close(error); });
}

Connection::~Connection() {
  loop_.unwatch(watch_);
  if (!failure_.empty()) {
    loop_.disarm_timer(failure_);
  }
}

void Connection::send(const std::string& lines) {
  if (!is_finishing_) {
    unsent_ += lines;
    write();
  }
}

void Connection::finish() {
  is_finishing_ = true;
  write();
}

void Connection::watch() {
  const uint32_t reading = state_ == State::open ? uint32_t{EPOLLIN} : 0;
  const uint32_t writing =
      state_ == State::connecting || !unsent_.empty() ? uint32_t{EPOLLOUT} : 0;
  if ((reading | writing) == watched_for_) {
    return;
  }
  watched_for_ = reading | writing;
  loop_.unwatch(watch_);
  watch_ = loop_.watch(socket_.get(), watched_for_, [this] { on_ready(); });
}

void Connection::on_ready() {
  if (state_ == State::connecting) {
    open();
    return;
  }
  write();
  read();
}

void Connection::open() {
  const int error = ddp::detail::connect_error(socket_);
  if (error != 0) {
    close(error);
    return;
  }
  state_ = State::open;
  write();
  const auto on_open = handlers_.on_open;
  on_open();
}

void Connection::read() {
  std::array<char, 16 * 1024> piece;
  const ssize_t size = retry_interrupted(
      [&] { return ::recv(socket_.get(), piece.data(), piece.size(), 0); });
  if (size <= 0) {
    if (size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
      close(size == 0 ? 0 : errno);
    }
    return;
  }
  unread_.append(piece.data(), static_cast<size_t>(size));
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end = unread_.find('\n'); end != std::string::npos;
       end = unread_.find('\n', begin)) {
    lines.push_back(unread_.substr(begin, end + 1 - begin));
    begin = end + 1;
  }
  unread_.erase(0, begin);
  if (unread_.size() > longest_line_) {
    close(EMSGSIZE);
    return;
  }
  const auto on_lines = handlers_.on_lines;
  on_lines(lines);
}

void Connection::write() {
  if (state_ == State::connecting) {
    return;
  }
  while (!unsent_.empty()) {
    const ssize_t size = retry_interrupted([&] {
      return ::send(
          socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    });
    if (size < 0) {
      break;
    }
    unsent_.erase(0, static_cast<size_t>(size));
  }
  if (unsent_.size() > kMostUnsent) {
    // The other end does not read. The loop then reports the end as any other.
    unsent_.clear();
    ::shutdown(socket_.get(), SHUT_RDWR);
  }
  if (is_finishing_ && unsent_.empty()) {
    ::shutdown(socket_.get(), SHUT_WR);
  }
  watch();
}

void Connection::close(int error) {
  loop_.unwatch(std::exchange(watch_, 0));
  const auto on_closed = handlers_.on_closed;
  on_closed(error);
}

}  // namespace launcher
