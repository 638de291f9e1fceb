#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options/values.h"

namespace launcher {

/// Connection settings for etcd.
struct EtcdSettings {
  std::vector<Endpoint> endpoints;  ///< members; at least one
  bool has_tls = false;             ///< protocol=https
  std::string certificate;  ///< ssl_cert: file with this client's certificate
  std::string key;          ///< ssl_cert_key: file with its key
  std::string authorities;  ///< ca_cert: file; empty: the system's
  std::string prefix = "/ddprun";
  std::string user;
  std::string password;
  std::chrono::milliseconds request_time{5'000};
  /// lease_timeout: of the coordinator's lease; std::nullopt: see lease_time()
  std::optional<std::chrono::milliseconds> lease{};
};

/// Returns "http://host:port", or https.
std::string url_of(const EtcdSettings& settings, const Endpoint& endpoint);

/// Returns "etcd at host:port,host:port", for messages.
std::string etcd_name(const EtcdSettings& settings);

}  // namespace launcher
