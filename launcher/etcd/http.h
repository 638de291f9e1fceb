#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "launcher/etcd/gateway.h"
#include "launcher/etcd/settings.h"

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

/// Requests to one etcd, one after the other over one connection to each of its
/// endpoints, by libcurl, which is loaded here. Every call waits, for a bounded
/// time: for a process of its own (BackgroundCall).
class EtcdHttp {
 public:
  explicit EtcdHttp(const EtcdSettings& settings);
  ~EtcdHttp();
  EtcdHttp(const EtcdHttp&) = delete;
  EtcdHttp& operator=(const EtcdHttp&) = delete;

  /// @param token of a user, or empty
  /// @param is_enough ends the answer early
  std::variant<HttpAnswer, HttpError> post(
      const Endpoint& endpoint,
      const GatewayRequest& request,
      const std::string& token,
      std::chrono::milliseconds limit,
      const std::function<bool(std::string_view body)>& is_enough = {});

 private:
  class Library;
  EtcdSettings settings_;
  std::unique_ptr<Library> library_;
};

}  // namespace launcher
