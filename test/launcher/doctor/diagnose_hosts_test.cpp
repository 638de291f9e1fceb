#include "launcher/doctor/diagnose_hosts.h"

#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;

namespace {

/// Returns the facts of three hosts, node0 to node2, with good paths.
HostsFacts three_hosts() {
  HostsFacts facts{.place = "node0:29600",
                   .least_hosts = 3,
                   .most_hosts = 3,
                   .ranks_are_fixed = true,
                   .has_all = true};
  for (int number = 0; number < 3; ++number) {
    facts.hosts.push_back({"node" + std::to_string(number),
                           "10.0.0." + std::to_string(number),
                           number});
    for (int to = 0; to < 3; ++to) {
      if (to != number) {
        facts.paths.push_back({.from = number,
                               .to = to,
                               .fault = PathFault::none,
                               .round_trip_seconds = 0.0001,
                               .bytes_per_second = 2e9});
      }
    }
  }
  return facts;
}

PathFacts& path(HostsFacts& facts, int from, int to) {
  for (PathFacts& each : facts.paths) {
    if (each.from == from && each.to == to) {
      return each;
    }
  }
  FAIL("no such path");
  return facts.paths.front();
}

/// Returns the only finding that is a warning or an error.
Finding only_bad(const HostsFacts& facts) {
  Finding bad;
  int count = 0;
  for (const Finding& finding : diagnose_hosts(facts)) {
    if (finding.severity != Severity::ok) {
      bad = finding;
      ++count;
    }
  }
  CHECK(count == 1);
  return bad;
}

}  // namespace

TEST_CASE("hosts that all reach each other") {
  const Findings findings = diagnose_hosts(three_hosts());
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].severity == Severity::ok);
  CHECK(findings[0].text ==
        "3 of 3 met at node0:29600: node0, node1 and node2");
  CHECK(findings[1].severity == Severity::ok);
  CHECK(findings[1].text ==
        "6 of 6 between the hosts connect: round trip 100 us, one connection "
        "carries 2.0 GB/s");
}

TEST_CASE("a host that does not reach another is named with the direction") {
  HostsFacts facts = three_hosts();
  path(facts, 1, 2).fault = PathFault::timed_out;
  const Finding finding = only_bad(facts);
  CHECK(finding.severity == Severity::error);
  CHECK(finding.subject == "ways");
  CHECK(finding.text ==
        "node1 cannot connect to node2 at 10.0.0.2: timed out, though node2 "
        "connects to node1");
  CHECK_THAT(finding.fix, Contains("a firewall drops it"));
  CHECK(diagnose_hosts(facts).size() == 2);  // no finding that all is well
}

TEST_CASE("each fault of a path has its own advice") {
  const auto about = [](PathFault fault, const std::string& error) {
    HostsFacts facts = three_hosts();
    path(facts, 0, 1).fault = fault;
    path(facts, 0, 1).error = error;
    const Finding finding = only_bad(facts);
    CHECK(finding.severity == Severity::error);
    return finding.text + "; " + finding.fix;
  };
  CHECK_THAT(about(PathFault::refused, ""),
             Contains(": refused, though") && Contains("firewall rejects"));
  CHECK_THAT(about(PathFault::unreachable, "No route to host"),
             Contains("no route (No route to host)") &&
                 Contains("correct the routes of node0"));
  CHECK_THAT(about(PathFault::stranger, ""),
             Contains("somebody else answers") &&
                 Contains("GLOO_SOCKET_IFNAME on node1"));
  CHECK_THAT(about(PathFault::stalled, ""),
             Contains("64 KiB do not arrive") && Contains("the same MTU"));
  CHECK_THAT(about(PathFault::broken, "Broken pipe"), Contains("Broken pipe"));
  CHECK_THAT(about(PathFault::untried, ""), Contains("not tried"));
}

TEST_CASE("of many faults the first are told") {
  HostsFacts facts = three_hosts();
  facts.paths.clear();
  for (int number = 0; number < 20; ++number) {
    facts.paths.push_back({.from = 0, .to = 1, .fault = PathFault::refused});
  }
  const Findings findings = diagnose_hosts(facts);
  CHECK(findings.size() == 18);
  CHECK_THAT(findings.back().text, Contains("4 more ways"));
  facts.paths.resize(17);
  CHECK_THAT(diagnose_hosts(facts).back().text, Contains("1 more way between"));
}

TEST_CASE("hosts that have not come, and one that has gone") {
  HostsFacts facts = three_hosts();
  facts.hosts.pop_back();
  facts.paths.clear();
  facts.waited_seconds = 120;
  const Finding missing = only_bad(facts);
  CHECK(missing.severity == Severity::error);
  CHECK(missing.text ==
        "2 of 3 met at node0:29600: node0 and node1; node rank 2 did not come "
        "within 120 s");
  facts.ranks_are_fixed = false;
  CHECK_THAT(only_bad(facts).text, Contains("; the others did not come"));
  facts.least_hosts = 2;
  CHECK(diagnose_hosts(facts).front().severity == Severity::ok);
  facts.lost = {"node9"};
  CHECK_THAT(only_bad(facts).text,
             Contains("node9 came, and then said no more"));
}

TEST_CASE("a path that carries far less than the others is a warning") {
  HostsFacts facts = three_hosts();
  path(facts, 2, 0).bytes_per_second = 1.2e7;
  const Finding finding = only_bad(facts);
  CHECK(finding.severity == Severity::warning);
  CHECK(finding.text ==
        "node2 sends node0 12.0 MB/s, but half of the ways carry 2.0 GB/s");
  path(facts, 2, 0).bytes_per_second = 0.6e9;
  CHECK(diagnose_hosts(facts).back().severity == Severity::ok);
}

TEST_CASE("hosts with one --node-rank are named") {
  HostsFacts facts = three_hosts();
  facts.hosts[2].rank = 1;
  const Finding finding = only_bad(facts);
  CHECK(finding.severity == Severity::error);
  CHECK(finding.text ==
        "expected --node-rank 1 of one host, but got it from node1 and node2");
  facts.ranks_are_fixed = false;
  CHECK(diagnose_hosts(facts).size() == 2);
}

TEST_CASE("a host that met nobody says why") {
  const Finding finding =
      only_bad({.place = "node0:29600", .error = "nobody listens; start it"});
  CHECK(finding.severity == Severity::error);
  CHECK(finding.text == "nobody listens");
  CHECK(finding.fix == "start it");
}

TEST_CASE("the table of paths, by row and column") {
  HostsFacts facts = three_hosts();
  facts.hosts[2].name = "node0";
  path(facts, 1, 2).fault = PathFault::refused;
  path(facts, 2, 1).bytes_per_second = 0;
  CHECK_THAT(path_table(facts),
             Catch::StartsWith(
                 "         node0#0          node1            node0#2\n"
                 "node0#0  X                100 us 2.0 GB/s  100 us 2.0 GB/s\n"
                 "node1    100 us 2.0 GB/s  X                refused\n"
                 "node0#2  100 us 2.0 GB/s  100 us           X\n"));
  facts.has_all = false;
  CHECK(path_table(facts).empty());
}
