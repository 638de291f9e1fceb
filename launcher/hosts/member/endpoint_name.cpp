#include "launcher/hosts/member/endpoint_name.h"

#include <system_error>
#include <utility>

#include "launcher/net/address.h"

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
      last_query_(name_time()) {}

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
        last_query_ = name_time();
        on_found(with_port(addresses, port_),
                 std::chrono::duration_cast<std::chrono::milliseconds>(
                     last_query_ - begin));
      });
}

std::vector<SocketAddress> EndpointName::fresh_addresses() {
  const Time now = name_time();
  if (!is_querying_ &&
      now >= last_query_ + question_.timeouts.between_lookups) {
    last_query_ = now;
    if (is_address(question_.host)) {
      return addresses_of(question_.host, port_);
    }
    start_query();
  }
  return std::exchange(fresh_, {});
}

void EndpointName::start_query() {
  try {
    call_.emplace(
        loop_,
        [ask = question_.ask, host = question_.host] {
          return encode(ask(host));
        },
        [this](const std::optional<std::string>& text) {
          is_querying_ = false;
          fresh_ = with_port(decode_answer(text.value_or("")).addresses, port_);
        });
    is_querying_ = true;
  } catch (const std::system_error&) {
    // No process can be started now. The known addresses stay in use.
  }
}

void EndpointName::stop() {
  lookup_.reset();
  call_.reset();
}

}  // namespace launcher
