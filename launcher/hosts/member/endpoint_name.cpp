#include "launcher/hosts/member/endpoint_name.h"

#include <system_error>
#include <utility>

#include "launcher/hosts/protocol/meeting_place.h"
#include "launcher/net/host_name.h"

namespace launcher {
namespace {

EndpointName::Time name_time() {
  return std::chrono::steady_clock::now();
}

}  // namespace

EndpointName::EndpointName(EventLoop& loop, NameQuestion question, int port)
    : loop_(loop),
      question_(std::move(question)),
      port_(port),
      asked_(name_time()) {}

void EndpointName::look_up(const Rendezvous::Handler& handler,
                           const Found& on_found) {
  if (is_address(question_.host)) {
    on_found(addresses_of(question_.host, port_), {});
    return;
  }
  const Time begin = name_time();
  lookup_.emplace(
      loop_,
      question_,
      handler,
      [this, begin, on_found](const std::vector<std::string>& addresses) {
        lookup_.reset();
        asked_ = name_time();
        on_found(with_port(addresses, port_),
                 std::chrono::duration_cast<std::chrono::milliseconds>(asked_ -
                                                                       begin));
      });
}

std::vector<SocketAddress> EndpointName::take_fresh() {
  const Time now = name_time();
  const bool is_name = !is_address(question_.host);
  if (is_name && !is_asking_ &&
      now >= asked_ + question_.patience.between_lookups) {
    asked_ = now;
    ask_again();
  }
  return std::exchange(fresh_, {});
}

void EndpointName::ask_again() {
  try {
    call_.emplace(
        loop_,
        [ask = question_.ask, host = question_.host] {
          return encode(ask(host));
        },
        [this](const std::optional<std::string>& text) {
          is_asking_ = false;
          fresh_ = with_port(decode_answer(text.value_or("")).addresses, port_);
        });
    is_asking_ = true;
  } catch (const std::system_error&) {
    // No process can be made now; the known addresses are tried on.
  }
}

void EndpointName::stop() {
  lookup_.reset();
  call_.reset();
}

}  // namespace launcher
