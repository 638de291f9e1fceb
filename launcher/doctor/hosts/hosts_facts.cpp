#include "launcher/doctor/hosts/hosts_facts.h"

#include <algorithm>
#include <map>

namespace launcher {

WayFacts merged(const WayFacts& before, WayFacts after) {
  if (after.fault == WayFault::none && before.round_trip_seconds > 0) {
    after.round_trip_seconds = before.round_trip_seconds;
  }
  return after;
}

std::vector<std::string> names_of_hosts(const HostsFacts& facts) {
  std::map<std::string, int> count;
  for (const MetHost& host : facts.hosts) {
    ++count[host.name];
  }
  std::vector<std::string> names;
  for (size_t number = 0; number < facts.hosts.size(); ++number) {
    const std::string& name = facts.hosts[number].name;
    names.push_back(count[name] == 1 ? name
                                     : name + "#" + std::to_string(number));
  }
  return names;
}

const WayFacts* find_way(const HostsFacts& facts, int from, int to) {
  const auto found = std::find_if(
      facts.ways.begin(), facts.ways.end(), [&](const WayFacts& way) {
        return way.from == from && way.to == to;
      });
  return found == facts.ways.end() ? nullptr : &*found;
}

}  // namespace launcher
