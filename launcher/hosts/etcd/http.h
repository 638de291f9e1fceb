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
#include "launcher/options/etcd_options.h"

namespace launcher {

/// Reason for a missing HTTP answer.
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

/// Sends HTTP requests to etcd, one at a time, by libcurl on the event loop.
/// Connections stay open between requests. This class alone loads libcurl. The
/// caller resolves host names, so libcurl starts no thread.
class EtcdHttp {
 public:
  using Handler =
      std::function<void(const std::variant<HttpAnswer, HttpError>&)>;
  using IsEnough = std::function<bool(std::string_view body)>;

  EtcdHttp(EventLoop& loop, const EtcdSettings& settings);
  ~EtcdHttp();
  EtcdHttp(const EtcdHttp&) = delete;
  EtcdHttp& operator=(const EtcdHttp&) = delete;

  /// Sends a request, and cancels the previous one if it has no answer yet.
  ///
  /// @param addresses  of the endpoint's host; empty: it is a numeric address
  /// @param token  of a user, or empty
  /// @param handler  is called by the loop, and may post the next request
  /// @param is_enough  returns whether the answer so far is enough
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
