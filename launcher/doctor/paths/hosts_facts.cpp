#include "launcher/doctor/paths/hosts_facts.h"

#include <algorithm>
#include <map>

namespace launcher {

PathFacts merged(const PathFacts& before, PathFacts after) {
  if (after.fault == PathFault::none && before.round_trip_seconds > 0) {
    after.round_trip_seconds = before.round_trip_seconds;
  }
  return after;
}

std::vector<std::string> names_of_hosts(const HostsFacts& facts) {
  std::map<std::string, int> count;
  for (const TestedHost& host : facts.hosts) {
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

const PathFacts* find_path(const HostsFacts& facts, int from, int to) {
  const auto found = std::find_if(
      facts.paths.begin(), facts.paths.end(), [&](const PathFacts& way) {
        return way.from == from && way.to == to;
      });
  return found == facts.paths.end() ? nullptr : &*found;
}

}  // namespace launcher
