#include "launcher/net/line_server.h"

#include <algorithm>
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
  for (Fd& listener : listeners) {
    doors_.push_back({std::move(listener)});
  }
  listen();
}

LineServer::~LineServer() {
  for (const Door& door : doors_) {
    loop_.unwatch(door.watch);
  }
}

void LineServer::stop_listening() {
  for (const Door& door : doors_) {
    loop_.unwatch(door.watch);
  }
  doors_.clear();
}

void LineServer::send(Id id, const std::string& lines) {
  const auto guest = guests_.find(id);
  if (guest != guests_.end()) {
    guest->second.connection->send(lines);
  }
}

std::string LineServer::address_here(Id id) const {
  const auto guest = guests_.find(id);
  return guest == guests_.end()
             ? ""
             : numeric_host(own_end(guest->second.connection->socket()));
}

std::string LineServer::address_there(Id id) const {
  const auto guest = guests_.find(id);
  return guest == guests_.end()
             ? ""
             : numeric_host(other_end(guest->second.connection->socket()));
}

void LineServer::close_after_flush(Id id) {
  const auto guest = guests_.find(id);
  if (guest != guests_.end() && !guest->second.is_parting) {
    guest->second.is_parting = true;
    guest->second.since = std::chrono::steady_clock::now();
    guest->second.connection->finish();
  }
}

void LineServer::drop_idle(Time latest,
                           const std::function<bool(Id)>& is_known) {
  for (auto next = guests_.begin(); next != guests_.end();) {
    const auto guest = next++;
    if (guest->second.since < latest && !is_known(guest->first)) {
      guests_.erase(guest);
    }
  }
  listen();
}

void LineServer::listen() {
  for (Door& door : doors_) {
    if (door.watch == 0) {
      door.watch = loop_.watch(
          door.listener.get(), EPOLLIN, [this, &door] { accept(door); });
    }
  }
}

void LineServer::accept(Door& door) {
  Fd socket = accept_from(door.listener);
  if (!socket && errno != EAGAIN && errno != ECONNABORTED) {
    // No descriptor or memory is left: the loop would call again at once.
    loop_.unwatch(std::exchange(door.watch, 0));
  }
  if (!socket || (guests_.size() >= most_ && !drop_oldest_stranger())) {
    return;
  }
  const Id id = ++last_id_;
  Connection::Handlers handlers{
      .on_open = [] {},
      .on_lines =
          [this, id](const std::vector<std::string>& lines) {
            take(id, lines);
          },
      .on_closed = [this, id](int error) { lose(id, error); }};
  guests_.emplace(id,
                  Client{std::make_unique<Connection>(loop_,
                                                      std::move(socket),
                                                      Connection::State::open,
                                                      longest_line_,
                                                      std::move(handlers)),
                         std::chrono::steady_clock::now()});
}

bool LineServer::drop_oldest_stranger() {
  // Ids count up, so the first is the oldest.
  const auto oldest =
      std::find_if(guests_.begin(), guests_.end(), [this](const auto& guest) {
        return guest.second.is_parting ||
               (handlers_.is_known && !handlers_.is_known(guest.first));
      });
  if (oldest == guests_.end()) {
    return false;
  }
  guests_.erase(oldest);
  return true;
}

void LineServer::take(Id id, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const auto guest = guests_.find(id);
    if (guest == guests_.end() || guest->second.is_parting) {
      return;
    }
    if (!handlers_.on_line(id, line)) {
      close_after_flush(id);
      handlers_.on_closed(id, EBADMSG);
    }
  }
}

void LineServer::lose(Id id, int error) {
  const auto guest = guests_.extract(id);
  if (!guest.mapped().is_parting) {
    handlers_.on_closed(id, error);
  }
}

}  // namespace launcher
