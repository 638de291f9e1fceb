#include "launcher/status/status_server.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "launcher/net/address.h"
#include "launcher/status/status_socket.h"

namespace launcher {
namespace {

constexpr size_t kMostGuests = 8;
constexpr size_t kLongestLine = 1024;
constexpr const char* kListenTimer = "status";

}  // namespace

StatusServer::StatusServer(EventLoop& loop,
                           const std::string& folder,
                           std::function<std::string()> describe)
    : loop_(loop), describe_(std::move(describe)) {
  if (folder.empty()) {
    return;
  }
  const std::string path = folder + "/" + std::string(kStatusSocketName);
  listener_ = listen_at_path(path);
  if (listener_) {
    path_ = path;
    listen();
  }
}

StatusServer::~StatusServer() {
  if (!path_.empty()) {
    // First, so that who finds it and is refused knows that ddprun was killed.
    ::unlink(path_.c_str());
    loop_.unwatch(watch_);
    loop_.disarm_timer(kListenTimer);
  }
}

void StatusServer::listen() {
  watch_ = loop_.watch(listener_.get(), EPOLLIN, [this] { accept(); });
}

void StatusServer::accept() {
  Fd socket = accept_from(listener_);
  if (!socket) {
    if (errno != EAGAIN && errno != ECONNABORTED) {
      // No descriptor is left: the loop would call again at once.
      loop_.unwatch(std::exchange(watch_, 0));
      loop_.arm_timer(
          kListenTimer, std::chrono::seconds(1), [this] { listen(); });
    }
    return;
  }
  if (guests_.size() >= kMostGuests) {
    guests_.erase(guests_.begin());
  }
  const uint64_t guest = ++last_guest_;
  const auto part = [this, guest] { guests_.erase(guest); };
  auto connection = std::make_unique<Connection>(
      loop_,
      std::move(socket),
      Connection::State::open,
      kLongestLine,
      Connection::Handlers{
          .on_open = [] {},
          .on_lines = [part](const std::vector<std::string>&) { part(); },
          .on_closed = [part](int) { part(); }});
  Connection& added = *connection;
  guests_.emplace(guest, std::move(connection));
  added.send(describe_());
  added.finish();
}

}  // namespace launcher
