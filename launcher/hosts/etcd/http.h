#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/base/event_loop.h"
#include "launcher/hosts/etcd/gateway.h"
#include "launcher/options/settings.h"

namespace launcher {

/// Why there was no HTTP answer.
struct HttpError {
  enum class Kind { unreachable, tls, stranger, no_library };
  Kind kind = Kind::unreachable;
  std::string text{};
};

struct HttpAnswer {
  int status = 0;
  std::string body{};
  std::string local_address{};  ///< of this end of the connection
};

/// Requests to one etcd, one at a time, over connections that stay open, by
/// libcurl on the event loop. libcurl is loaded here, and only here. It starts
/// no thread: the caller has looked up the addresses.
class EtcdHttp {
 public:
  using Handler =
      std::function<void(const std::variant<HttpAnswer, HttpError>&)>;
  using IsEnough = std::function<bool(std::string_view body)>;

  EtcdHttp(EventLoop& loop, const EtcdSettings& settings);
  ~EtcdHttp();
  EtcdHttp(const EtcdHttp&) = delete;
  EtcdHttp& operator=(const EtcdHttp&) = delete;

  /// Gives up the request before, if it has no answer yet.
  ///
  /// @param addresses of the endpoint's host; empty: it is one itself
  /// @param token of a user, or empty
  /// @param handler is called by the loop; may post the next one
  /// @param is_enough ends the answer early
  void post(const Endpoint& endpoint,
            const std::vector<std::string>& addresses,
            const GatewayRequest& request,
            const std::string& token,
            std::chrono::milliseconds limit,
            Handler handler,
            IsEnough is_enough = {});
  void cancel();

 private:
  class Transfers;
  EventLoop& loop_;
  EtcdSettings settings_;
  std::unique_ptr<Transfers> transfers_;
};

}  // namespace launcher
