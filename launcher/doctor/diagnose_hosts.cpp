#include "launcher/doctor/diagnose_hosts.h"

#include <algorithm>
#include <vector>

#include "launcher/base/count_text.h"
#include "launcher/doctor/units.h"

namespace launcher {
namespace {

constexpr size_t kMostNames = 8;
constexpr size_t kMostFaults = 16;
// Fraction of the median bandwidth; slower paths are reported.
constexpr double kSlow = 0.25;

using HostNames = std::vector<std::string>;

std::string first_names(const HostNames& names) {
  if (names.size() <= kMostNames) {
    return list_text(names);
  }
  HostNames some(names.begin(), names.begin() + kMostNames - 1);
  some.push_back(std::to_string(names.size() - some.size()) + " more");
  return list_text(some);
}

HostNames missing_ranks(const HostsFacts& facts) {
  HostNames missing;
  for (int rank = 0; facts.ranks_are_fixed && rank < facts.most_hosts; ++rank) {
    const bool is_here = std::any_of(
        facts.hosts.begin(), facts.hosts.end(), [&](const TestedHost& host) {
          return host.rank == rank;
        });
    if (!is_here) {
      missing.push_back(std::to_string(rank));
    }
  }
  return missing;
}

/// Adds a finding for each --node-rank that is given to several hosts.
void add_equal_ranks(const HostsFacts& facts,
                     const HostNames& names,
                     Findings& findings) {
  for (int rank = 0; facts.ranks_are_fixed && rank < facts.most_hosts; ++rank) {
    HostNames equal;
    for (size_t number = 0; number < names.size(); ++number) {
      if (facts.hosts[number].rank == rank) {
        equal.push_back(names[number]);
      }
    }
    if (equal.size() > 1) {
      findings.push_back(
          failing("hosts",
                  "expected --node-rank " + std::to_string(rank) +
                      " of one host, but got it from " + first_names(equal),
                  "give each host its own"));
    }
  }
}

Finding diagnose_presence(const HostsFacts& facts) {
  const auto here = static_cast<int>(facts.hosts.size());
  const std::string text =
      std::to_string(here) + " of " + std::to_string(facts.most_hosts) +
      " met at " + facts.place + ": " + first_names(names_of_hosts(facts));
  if (here >= facts.least_hosts) {
    return all_well("hosts", text);
  }
  const HostNames missing = missing_ranks(facts);
  const std::string who = missing.empty()
                              ? "the others"
                              : std::string("node rank") +
                                    (missing.size() == 1 ? " " : "s ") +
                                    first_names(missing);
  return failing("hosts",
                 text + "; " + who + " did not come within " +
                     std::to_string(facts.waited_seconds) + " s",
                 "start `ddprun --doctor` there, too; where it runs, its own "
                 "report says what keeps it away");
}

/// Returns a short description of a fault, and its likely cause with a fix.
std::pair<std::string, std::string> explain(const PathFacts& way,
                                            const std::string& from,
                                            const std::string& to) {
  const std::string open =
      "let these hosts connect to each other at all TCP ports";
  switch (way.fault) {
    case PathFault::refused:
      return {"refused",
              "a firewall rejects it, or another host has that address: " +
                  open + ", or give " + to +
                  " another address (GLOO_SOCKET_IFNAME there)"};
    case PathFault::unreachable:
      return {"no route (" + way.error + ")",
              "correct the routes of " + from + ", or name an interface of " +
                  to + " that " + from +
                  " is behind (GLOO_SOCKET_IFNAME there)"};
    case PathFault::timed_out:
      return {"timed out",
              "a firewall drops it, or the way leads elsewhere: " + open +
                  ", and check the routes of both"};
    case PathFault::stranger:
      return {"somebody else answers at that address",
              "two hosts have one address, as docker's bridges do: name "
              "another interface (GLOO_SOCKET_IFNAME on " +
                  to + ")"};
    case PathFault::stalled:
      return {"it connects, but 64 KiB do not arrive",
              "give all interfaces on the way the same MTU"};
    default:
      return {way.error.empty() ? "not tried" : way.error,
              way.error.empty() ? "look at the report of " + from
                                : "check the network between them"};
  }
}

Finding diagnose_fault(const HostsFacts& facts,
                       const HostNames& names,
                       const PathFacts& way) {
  const std::string& from = names[static_cast<size_t>(way.from)];
  const std::string& to = names[static_cast<size_t>(way.to)];
  const auto [what, fix] = explain(way, from, to);
  const PathFacts* back = find_path(facts, way.to, way.from);
  const std::string other = back == nullptr || back->fault != PathFault::none
                                ? ""
                                : ", though " + to + " connects to " + from;
  return failing("ways",
                 from + " cannot connect to " + to + " at " +
                     facts.hosts[static_cast<size_t>(way.to)].address + ": " +
                     what + other,
                 fix);
}

bool is_wrong(const PathFacts& way, const HostsFacts& facts) {
  const bool is_known = way.fault != PathFault::untried || facts.lost.empty();
  return way.fault != PathFault::none && is_known;
}

void add_faults(const HostsFacts& facts,
                const HostNames& names,
                Findings& findings) {
  size_t count = 0;
  for (const PathFacts& way : facts.paths) {
    if (is_wrong(way, facts) && ++count <= kMostFaults) {
      findings.push_back(diagnose_fault(facts, names, way));
    }
  }
  if (count > kMostFaults) {
    findings.push_back(failing(
        "ways",
        count_text(static_cast<int64_t>(count - kMostFaults), "more way") +
            " between hosts cannot connect",
        "--json lists them all"));
  }
}

void add_slow_paths(const HostsFacts& facts,
                    const HostNames& names,
                    Findings& findings) {
  std::vector<double> rates;
  for (const PathFacts& way : facts.paths) {
    if (way.fault == PathFault::none && way.bytes_per_second > 0) {
      rates.push_back(way.bytes_per_second);
    }
  }
  if (rates.size() < 2) {
    return;
  }
  const auto middle =
      rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  const double median = *middle;
  for (const PathFacts& way : facts.paths) {
    if (way.fault == PathFault::none && way.bytes_per_second > 0 &&
        way.bytes_per_second < kSlow * median &&
        findings.size() < 2 * kMostFaults) {
      findings.push_back(
          warning("ways",
                  names[static_cast<size_t>(way.from)] + " sends " +
                      names[static_cast<size_t>(way.to)] + " " +
                      rate_text(way.bytes_per_second) +
                      ", but half of the "
                      "ways carry " +
                      rate_text(median),
                  "look at the cables, the switch and the load of the two"));
    }
  }
}

/// Formats the range of positive values: "0.1 ms", or "0.1 to 0.4 ms".
template <typename Text>
std::string range_text(const std::vector<double>& values, Text text) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const std::string first = text(*least);
  const std::string last = text(*most);
  return first == last ? first : first + " to " + last;
}

Finding sum_up(const HostsFacts& facts, const HostNames& names) {
  std::vector<double> trips;
  std::vector<double> rates;
  for (const PathFacts& way : facts.paths) {
    if (way.fault == PathFault::none) {
      trips.push_back(way.round_trip_seconds);
      if (way.bytes_per_second > 0) {
        rates.push_back(way.bytes_per_second);
      }
    }
  }
  const std::string count = std::to_string(trips.size());
  std::string text =
      count + " of " + count +
      (facts.has_all ? " between the hosts"
                     : " from " + names[static_cast<size_t>(facts.own)]) +
      (trips.size() == 1 ? " connects" : " connect");
  text += ": round trip " + range_text(trips, round_trip_text);
  if (!rates.empty()) {
    text += ", one connection carries " + range_text(rates, rate_text);
  }
  return all_well(
      "ways",
      facts.has_all ? text : text + "; " + names.front() + " has the rest");
}

}  // namespace

Findings diagnose_hosts(const HostsFacts& facts) {
  if (!facts.left_out.empty()) {
    return {all_well("hosts", "not tried pair by pair: " + facts.left_out)};
  }
  if (!facts.error.empty()) {
    return {failing("hosts", facts.error)};
  }
  const HostNames names = names_of_hosts(facts);
  Findings findings{diagnose_presence(facts)};
  add_equal_ranks(facts, names, findings);
  for (const std::string& host : facts.lost) {
    findings.push_back(failing("hosts",
                               host + " came, and then said no more",
                               "look at it, and at its report"));
  }
  const size_t before = findings.size();
  add_faults(facts, names, findings);
  const bool all_connect = findings.size() == before && facts.lost.empty();
  if (all_connect && !facts.paths.empty()) {
    findings.push_back(sum_up(facts, names));
  }
  add_slow_paths(facts, names, findings);
  return findings;
}

}  // namespace launcher
