#include "launcher/hosts/member/coordinator_connection.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace launcher {
namespace {

bool has_address(const std::vector<SocketAddress>& all,
                 const SocketAddress& one) {
  return std::any_of(all.begin(), all.end(), [&](const SocketAddress& other) {
    return is_same(one, other);
  });
}

bool are_same(const std::vector<SocketAddress>& left,
              const std::vector<SocketAddress>& right) {
  return left.size() == right.size() &&
         std::all_of(left.begin(), left.end(), [&](const SocketAddress& one) {
           return has_address(right, one);
         });
}

}  // namespace

CoordinatorConnection::CoordinatorConnection(EventLoop& loop, Handlers handlers)
    : loop_(loop), handlers_(std::move(handlers)) {}

void CoordinatorConnection::connect() {
  own_address_.clear();
  begin(begin_to_connect(addresses_[next_address_]));
}

void CoordinatorConnection::connect_to(LineServer& own,
                                       const std::string& address) {
  own_address_ = address;
  begin(own.connect_from_here());
}

void CoordinatorConnection::begin(Fd socket) {
  connection_ = std::make_unique<Connection>(
      loop_,
      std::move(socket),
      Connection::State::connecting,
      kLongestMessage,
      Connection::Handlers{
          .on_open = [this] { on_open(); },
          .on_lines =
              [this](const std::vector<std::string>& lines) {
                on_lines(lines);
              },
          .on_closed = [this](int error) { on_closed(error); }});
}

void CoordinatorConnection::use(std::vector<SocketAddress> addresses) {
  if (!is_found_ && !addresses.empty() && !are_same(addresses, addresses_)) {
    addresses_ = std::move(addresses);
    next_address_ = 0;
  }
}

void CoordinatorConnection::send(const Message& message) {
  if (connection_) {
    connection_->send(encode(message));
  }
}

void CoordinatorConnection::disconnect() {
  if (connection_) {
    connection_->finish();
    connection_.reset();
    turn_to_next_address();
  }
}

void CoordinatorConnection::on_open() {
  handlers_.on_open(own_address_.empty()
                        ? numeric_host(own_end(connection_->socket()))
                        : own_address_);
}

void CoordinatorConnection::on_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    if (!connection_) {
      return;
    }
    if (const auto message = decode(line)) {
      is_found_ = true;
      handlers_.on_message(*message);
    } else {
      report_loss("another program uses the port", /*is_gone=*/true);
    }
  }
}

void CoordinatorConnection::on_closed(int error) {
  const bool is_gone = is_found_ && error == ECONNREFUSED;
  report_loss(is_gone ? "nobody listens there any more" : end_text(error),
              is_gone);
}

void CoordinatorConnection::report_loss(const std::string& how, bool is_gone) {
  connection_.reset();
  const std::string host = own_address_.empty()
                               ? numeric_host(addresses_[next_address_])
                               : own_address_;
  turn_to_next_address();
  handlers_.on_lost(host + ": " + how, is_gone);
}

void CoordinatorConnection::turn_to_next_address() {
  if (!is_found_ && own_address_.empty()) {
    next_address_ = (next_address_ + 1) % addresses_.size();
  }
}

}  // namespace launcher
