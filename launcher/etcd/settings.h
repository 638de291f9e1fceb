#pragma once

#include <chrono>
#include <string>

#include "launcher/cli/values.h"

namespace launcher {

/// How an etcd is reached.
struct EtcdSettings {
  Endpoint endpoint;
  bool has_tls = false;     ///< protocol=https
  std::string certificate;  ///< ssl_cert: of this client, a file
  std::string key;          ///< ssl_cert_key: its key, a file
  std::string authorities;  ///< ca_cert: a file; empty: the system's
  std::string prefix = "/ddprun";
  std::string user;
  std::string password;
  std::chrono::milliseconds request_time{5'000};
};

/// "http://host:port", or https.
std::string url_of(const EtcdSettings& settings);

}  // namespace launcher
