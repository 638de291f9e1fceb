#include <cstddef>

#include "launcher/base/text_table.h"
#include "launcher/doctor/diagnose_hosts.h"
#include "launcher/doctor/units.h"

namespace launcher {
namespace {

constexpr size_t kMostInTable = 24;

std::string cell_of(const HostsFacts& facts, int from, int to) {
  const PathFacts* way = from == to ? nullptr : find_path(facts, from, to);
  if (way == nullptr) {
    return from == to ? "X" : "?";
  }
  if (way->fault != PathFault::none) {
    return fault_text(way->fault);
  }
  return round_trip_text(way->round_trip_seconds) +
         (way->bytes_per_second > 0 ? " " + rate_text(way->bytes_per_second)
                                    : "");
}

}  // namespace

std::string fault_text(PathFault fault) {
  switch (fault) {
    case PathFault::none:
      return "none";
    case PathFault::untried:
      return "not tried";
    case PathFault::refused:
      return "refused";
    case PathFault::unreachable:
      return "no route";
    case PathFault::timed_out:
      return "timed out";
    case PathFault::stranger:
      return "stranger";
    case PathFault::stalled:
      return "stalled";
    case PathFault::broken:
      break;
  }
  return "broken";
}

std::string path_table(const HostsFacts& facts) {
  const auto count = static_cast<int>(facts.hosts.size());
  if (!facts.has_all || count < 2 || facts.hosts.size() > kMostInTable) {
    return "";
  }
  const std::vector<std::string> names = names_of_hosts(facts);
  std::vector<std::vector<std::string>> rows(1, {""});
  for (int from = 0; from < count; ++from) {
    const std::string& name = names[static_cast<size_t>(from)];
    rows.front().push_back(name);
    rows.push_back({name});
    for (int to = 0; to < count; ++to) {
      rows.back().push_back(cell_of(facts, from, to));
    }
  }
  return text_table(rows) +
         "The host of a row connects to that of a column: round trip, and "
         "what one\nconnection carries\n";
}

}  // namespace launcher
