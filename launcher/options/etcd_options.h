#pragma once

#include <chrono>
#include <map>
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

/// Returns true for "etcd" and "etcd-v2", torchrun's two clients, which are the
/// same here.
bool is_etcd(const std::string& backend);

/// Returns the etcd settings of --rdzv-conf, with torchrun's keys.
///
/// @param settings see parse_settings(), checked
/// @param endpoints port 0: etcd's default port
/// @throws UsageError if the settings contradict each other
EtcdSettings etcd_settings(const std::map<std::string, std::string>& settings,
                           const std::vector<Endpoint>& endpoints);

}  // namespace launcher
