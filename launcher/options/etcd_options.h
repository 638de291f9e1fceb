#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/options/settings.h"
#include "launcher/options/values.h"

namespace launcher {

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
