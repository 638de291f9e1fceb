#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>

#include "launcher/net/address.h"

namespace launcher {

using ddp::detail::Resolved;

/// Queries a name service for the addresses of a host; may block for ever.
using NameService = std::function<Resolved(const std::string& host, int port)>;

/// Queries this machine's name service.
Resolved ask_name_service(const std::string& host, int port);

/// Looks up a host name again and again without blocking: its address may come
/// late or change, like the address of a pod that has not started yet. Each
/// query runs on a thread that blocks all signals. Nothing waits for the
/// thread: it may hang in getaddrinfo(), which has no time-out.
class NameLookup {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// @param between  time between the end of a query and the next query
  NameLookup(Endpoint endpoint,
             std::chrono::milliseconds between,
             NameService ask);

  /// Returns the latest answer with addresses, else the latest answer, or
  /// nothing before the first one. Starts the next query when it is due. A
  /// numeric address has its answer at once.
  ///
  /// @throws LaunchError if no thread can be started, or if no name service
  ///   can ever know the name
  const std::optional<Resolved>& poll(Time now);

  /// Reason why there is no address: "host name node7 cannot be resolved (Name
  /// or service not known)".
  std::string problem() const;

 private:
  void start();

  Endpoint endpoint_;
  std::chrono::milliseconds between_;
  NameService ask_;
  std::future<Resolved> query_;
  Time next_query_{};
  std::optional<Resolved> answer_;
};

/// Whether a name service may ever know the name. False for a wrong address
/// (10.0.0.256), a label of 64 characters, and a name below .invalid.
bool can_be_host_name(const std::string& host);

}  // namespace launcher
