#include "launcher/doctor/paths/echo_server.h"

#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "launcher/base/error.h"
#include "launcher/doctor/paths/path_probe.h"
#include "launcher/net/address.h"

namespace launcher {
namespace {

Fd listen_at_free_port() {
  for (const SocketAddress& place : all_own_addresses(0)) {
    if (Fd listener = listen_at(place)) {
      return listener;
    }
  }
  throw LaunchError(kExitFailure,
                    "cannot listen for the other hosts (" +
                        std::generic_category().message(errno) +
                        "); check the network and `ulimit -n`");
}

std::vector<Fd> only(Fd listener) {
  std::vector<Fd> all;
  all.push_back(std::move(listener));
  return all;
}

}  // namespace

EchoServer::EchoServer(EventLoop& loop, std::string id, size_t most)
    : EchoServer(loop, std::move(id), most, listen_at_free_port()) {}

EchoServer::EchoServer(EventLoop& loop,
                       std::string id,
                       size_t most,
                       Fd listener)
    : id_(std::move(id)),
      port_(port_of(own_end(listener))),
      guests_(loop,
              only(std::move(listener)),
              most,
              kProbeLine,
              {.on_line =
                   [this](LineServer::Id guest, const std::string& line) {
                     return this->on_line(guest, line);
                   },
               .on_closed = [this](LineServer::Id guest,
                                   int) { greeted_.erase(guest); }}) {}

bool EchoServer::on_line(LineServer::Id guest, const std::string& line) {
  const bool is_greeted = greeted_.count(guest) > 0;
  if (!is_greeted && line != id_ + "\n") {
    return false;
  }
  greeted_.insert(guest);
  guests_.send(guest, is_greeted ? "\n" : line);
  return true;
}

}  // namespace launcher
