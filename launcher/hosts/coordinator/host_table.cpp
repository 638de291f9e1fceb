#include "launcher/hosts/coordinator/host_table.h"

#include <algorithm>

namespace launcher {

bool KnownHost::has_succeeded_in(int generation) const {
  return is_in(generation) && state.outcome &&
         std::holds_alternative<HostSucceeded>(*state.outcome);
}

HostCounts& HostCounts::operator+=(const HostCounts& other) {
  joined += other.joined;
  seated += other.seated;
  succeeded += other.succeeded;
  return *this;
}

HostCounts& HostCounts::operator-=(const HostCounts& other) {
  joined -= other.joined;
  seated -= other.seated;
  succeeded -= other.succeeded;
  return *this;
}

HostCounts counts_of(const KnownHost& host, int generation) {
  return {.joined = host.has_joined() ? 1 : 0,
          .seated = host.seat ? 1 : 0,
          .succeeded = host.seat && host.has_succeeded_in(generation) ? 1 : 0};
}

HostCounts counts_of(const HostTable& hosts, int generation) {
  HostCounts counts;
  for (const auto& [connection, host] : hosts) {
    counts += counts_of(host, generation);
  }
  return counts;
}

std::string names_of(const HostTable& hosts,
                     int count,
                     const std::function<bool(const KnownHost&)>& is_meant) {
  constexpr int kMostNames = 8;
  const int shown = std::min(count, kMostNames);
  std::string text;
  int found = 0;
  for (auto next = hosts.begin(); next != hosts.end() && found < shown;
       ++next) {
    if (is_meant(next->second)) {
      text += (found == 0 ? "" : ", ") + next->second.hello.host;
      ++found;
    }
  }
  return count > shown
             ? text + " and " + std::to_string(count - shown) + " more"
             : text;
}

std::string names_of_joined(const HostTable& hosts, int count) {
  return names_of(
      hosts, count, [](const KnownHost& host) { return host.has_joined(); });
}

}  // namespace launcher
