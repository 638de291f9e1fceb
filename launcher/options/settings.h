#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options/values.h"

namespace launcher {

/// How an etcd is reached.
struct EtcdSettings {
  std::vector<Endpoint> endpoints;  ///< of its members, at least one
  bool has_tls = false;             ///< protocol=https
  std::string certificate;          ///< ssl_cert: of this client, a file
  std::string key;                  ///< ssl_cert_key: its key, a file
  std::string authorities;          ///< ca_cert: a file; empty: the system's
  std::string prefix = "/ddprun";
  std::string user;
  std::string password;
  std::chrono::milliseconds request_time{5'000};
  /// lease_timeout: of the coordinator's lease; none: see lease_time()
  std::optional<std::chrono::milliseconds> lease{};
};

/// "http://host:port", or https.
std::string url_of(const EtcdSettings& settings, const Endpoint& endpoint);

/// "etcd at host:port,host:port", for people.
std::string etcd_name(const EtcdSettings& settings);

}  // namespace launcher
