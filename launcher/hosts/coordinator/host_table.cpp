#include "launcher/hosts/coordinator/host_table.h"

#include <algorithm>

namespace launcher {

bool KnownHost::has_succeeded_in(int generation) const {
  return is_in(generation) && state.outcome &&
         std::holds_alternative<HostSucceeded>(*state.outcome);
}

int count_joined(const HostTable& hosts) {
  return static_cast<int>(
      std::count_if(hosts.begin(), hosts.end(), [](const auto& entry) {
        return entry.second.has_joined();
      }));
}

std::string names_of(const HostTable& hosts,
                     const std::function<bool(const KnownHost&)>& is_meant) {
  constexpr int kMostNames = 8;
  std::string text;
  int count = 0;
  for (const auto& [connection, host] : hosts) {
    if (is_meant(host) && ++count <= kMostNames) {
      text += (count == 1 ? "" : ", ") + host.hello.host;
    }
  }
  return count > kMostNames
             ? text + " and " + std::to_string(count - kMostNames) + " more"
             : text;
}

std::string names_of_joined(const HostTable& hosts) {
  return names_of(hosts,
                  [](const KnownHost& host) { return host.has_joined(); });
}

}  // namespace launcher
