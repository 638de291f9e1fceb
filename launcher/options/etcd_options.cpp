#include "launcher/options/etcd_options.h"

#include <algorithm>

#include "launcher/base/error.h"
#include "launcher/net/endpoint.h"

namespace launcher {
namespace {

constexpr int kEtcdPort = 2379;

/// Returns a setting by its etcd-v2 name or its etcd name.
std::string setting_of(const std::map<std::string, std::string>& settings,
                       const char* name,
                       const char* other_name) {
  for (const char* key : {name, other_name}) {
    const auto found = settings.find(key);
    if (found != settings.end()) {
      return found->second;
    }
  }
  return "";
}

}  // namespace

std::string url_of(const EtcdSettings& settings, const Endpoint& endpoint) {
  return (settings.has_tls ? "https://" : "http://") + text_of(endpoint);
}

std::string etcd_name(const EtcdSettings& settings) {
  std::string name = "etcd at ";
  for (const Endpoint& endpoint : settings.endpoints) {
    name += (name.back() == ' ' ? "" : ",") + text_of(endpoint);
  }
  return name;
}

bool is_etcd(const std::string& backend) {
  return backend == "etcd" || backend == "etcd-v2";
}

EtcdSettings etcd_settings(const std::map<std::string, std::string>& settings,
                           const std::vector<Endpoint>& endpoints) {
  EtcdSettings etcd;
  etcd.endpoints = endpoints;
  for (Endpoint& endpoint : etcd.endpoints) {
    endpoint.port = endpoint.port == 0 ? kEtcdPort : endpoint.port;
  }
  const std::string protocol = setting_of(settings, "protocol", "protocol");
  // The value is http or https in any case of letters, so its length decides.
  etcd.has_tls = protocol.size() == std::string("https").size();
  etcd.certificate = setting_of(settings, "ssl_cert", "cert");
  etcd.key = setting_of(settings, "ssl_cert_key", "key");
  etcd.authorities = setting_of(settings, "ca_cert", "cacert");
  const std::string prefix = setting_of(settings, "etcd_prefix", "etcd_prefix");
  etcd.prefix = prefix.empty() ? etcd.prefix : prefix;
  const std::string lease =
      setting_of(settings, "lease_timeout", "lease_timeout");
  if (!lease.empty()) {
    etcd.lease = parse_seconds(lease);
  }
  const bool has_files = !etcd.certificate.empty() || !etcd.key.empty() ||
                         !etcd.authorities.empty();
  if (has_files && !etcd.has_tls) {
    throw UsageError(
        "--rdzv-conf: expected protocol=https beside ssl_cert, ssl_cert_key "
        "or ca_cert, but got http");
  }
  if (etcd.certificate.empty() != etcd.key.empty()) {
    throw UsageError(
        "--rdzv-conf: expected both ssl_cert and ssl_cert_key, or none, but "
        "got one of them");
  }
  return etcd;
}

}  // namespace launcher
