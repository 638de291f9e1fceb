#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/options/settings.h"
#include "launcher/options/values.h"

namespace launcher {

/// "etcd" and "etcd-v2", which are one here: torchrun's two clients.
bool is_etcd(const std::string& backend);

/// What --rdzv-conf says of etcd, with torchrun's keys.
///
/// @param settings see parse_settings(), checked
/// @param endpoints port 0: etcd's own
/// @throws UsageError when they contradict each other
EtcdSettings etcd_settings(const std::map<std::string, std::string>& settings,
                           const std::vector<Endpoint>& endpoints);

}  // namespace launcher
