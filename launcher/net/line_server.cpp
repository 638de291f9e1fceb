#include "launcher/net/line_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "launcher/net/address.h"

namespace launcher {

LineServer::LineServer(EventLoop& loop,
                       std::vector<Fd> listeners,
                       size_t most,
                       size_t longest_line,
                       Handlers handlers)
    : loop_(loop),
      most_(most),
      longest_line_(longest_line),
      handlers_(std::move(handlers)) {
  for (Fd& socket : listeners) {
    listeners_.push_back({std::move(socket)});
  }
  listen();
}

LineServer::~LineServer() {
  for (const Listener& listener : listeners_) {
    loop_.unwatch(listener.watch);
  }
}

void LineServer::stop_listening() {
  for (const Listener& listener : listeners_) {
    loop_.unwatch(listener.watch);
  }
  listeners_.clear();
}

void LineServer::send(Id id, const std::string& lines) {
  const auto client = clients_.find(id);
  if (client != clients_.end()) {
    client->second.connection->send(lines);
  }
}

void LineServer::close_after_flush(Id id) {
  const auto client = clients_.find(id);
  if (client != clients_.end() && !client->second.is_closing) {
    client->second.is_closing = true;
    client->second.since = std::chrono::steady_clock::now();
    client->second.connection->finish();
  }
}

void LineServer::drop_idle(Time latest) {
  for (auto next = clients_.begin(); next != clients_.end();) {
    const auto client = next++;
    if (client->second.since < latest &&
        !(handlers_.is_known && handlers_.is_known(client->first))) {
      clients_.erase(client);
    }
  }
  listen();
}

void LineServer::listen() {
  for (Listener& listener : listeners_) {
    if (listener.watch == 0) {
      listener.watch = loop_.watch(listener.socket.get(),
                                   EPOLLIN,
                                   [this, &listener] { accept(listener); });
    }
  }
}

void LineServer::accept(Listener& listener) {
  Fd socket = accept_from(listener.socket);
  if (!socket && errno != EAGAIN && errno != ECONNABORTED) {
    // No descriptor or memory is left, and the loop would call again at once.
    loop_.unwatch(std::exchange(listener.watch, 0));
  }
  if (!socket || (clients_.size() >= most_ && !drop_oldest_unknown())) {
    return;
  }
  add(std::move(socket));
}

Fd LineServer::connect_from_here() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX,
                   SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                   0,
                   ends.data()) != 0) {
    return Fd();
  }
  own_ = add(Fd(ends[0]));
  return Fd(ends[1]);
}

LineServer::Id LineServer::add(Fd socket) {
  const Id id = ++last_id_;
  Connection::Handlers handlers{
      .on_open = [] {},
      .on_lines =
          [this, id](const std::vector<std::string>& lines) {
            on_lines(id, lines);
          },
      .on_closed = [this, id](int error) { on_closed(id, error); }};
  clients_.emplace(id,
                   Client{std::make_unique<Connection>(loop_,
                                                       std::move(socket),
                                                       Connection::State::open,
                                                       longest_line_,
                                                       std::move(handlers)),
                          std::chrono::steady_clock::now()});
  return id;
}

bool LineServer::drop_oldest_unknown() {
  // Ids count up, so the first is the oldest.
  const auto oldest = std::find_if(
      clients_.begin(), clients_.end(), [this](const auto& client) {
        return client.second.is_closing ||
               (handlers_.is_known && !handlers_.is_known(client.first));
      });
  if (oldest == clients_.end()) {
    return false;
  }
  clients_.erase(oldest);
  return true;
}

void LineServer::on_lines(Id id, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const auto client = clients_.find(id);
    if (client == clients_.end() || client->second.is_closing) {
      return;
    }
    if (!handlers_.on_line(id, line)) {
      close_after_flush(id);
      handlers_.on_closed(id, EBADMSG);
    }
  }
}

void LineServer::on_closed(Id id, int error) {
  const auto client = clients_.extract(id);
  if (!client.mapped().is_closing) {
    handlers_.on_closed(id, error);
  }
}

}  // namespace launcher
