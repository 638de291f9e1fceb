#include "launcher/doctor/paths/path_test_coordinator.h"

#include <set>

#include "launcher/doctor/host_test.h"
#include "test/support/catch.h"

using namespace launcher;
using namespace std::chrono_literals;

namespace {

using PathConnection = PathTestCoordinator::Connection;

/// A coordinator and simulated workers, rank r on connection 10 + r.
class Workers {
 public:
  explicit Workers(int count) : coordinator_(count, now_), count_(count) {}

  static PathHello hello(int rank) {
    const std::string name = "node" + std::to_string(rank);
    const std::string address =
        rank == 0 ? "" : "10.0.0." + std::to_string(rank);
    return {rank, {{name, address, rank}, "id of " + name, 4000 + rank}};
  }

  void come(int rank) { say(connection_of(rank), hello(rank)); }
  void come_all() {
    for (int rank = 0; rank < count_; ++rank) {
      come(rank);
    }
  }
  void say(PathConnection from, const PathMessage& message) {
    keep(coordinator_.on_message(from, "10.9.0.1", message, now_));
  }
  void leave(int rank) {
    keep(coordinator_.on_closed(connection_of(rank), now_));
  }
  void wait(std::chrono::seconds time) {
    now_ += time;
    keep(coordinator_.on_time(now_));
  }
  /// Sends the report of a rank: each path connects, with figures that depend
  /// on the round.
  void report(int rank, const std::vector<int>& targets) {
    PathReport report{rank, round, {}};
    for (const int to : targets) {
      report.paths.push_back({.to = to,
                              .fault = PathFault::none,
                              .round_trip_seconds = 1.0 + round,
                              .bytes_per_second = 100.0 * (1 + round)});
    }
    say(connection_of(rank), report);
  }
  /// Reports for every rank except `silent` the paths of this round.
  void report_all(int silent = -1) {
    const int here = round;
    for (int rank = 0; rank < count_; ++rank) {
      std::vector<int> targets;
      for (int other = 1; other < count_; ++other) {
        if (here == 0 || here == other) {
          targets.push_back((rank + other) % count_);
        }
      }
      if (rank != silent) {
        report(rank, targets);
      }
    }
  }

  HostsFacts facts() const {
    std::string lines = encode_path(hello(0));
    for (const PathMessage& message : coordinator_.results()) {
      lines += encode_path(message);
    }
    return parse_path_test(lines);
  }
  const PathTestCoordinator& coordinator() const { return coordinator_; }

  int round = -1;
  std::vector<PathPeer> peers;
  std::optional<PathEnd> end;

 private:
  static PathConnection connection_of(int rank) {
    return 10 + static_cast<PathConnection>(rank);
  }
  void keep(const PathTestCoordinator::Broadcasts& messages) {
    for (const PathMessage& message : messages) {
      if (const auto* all = std::get_if<PathPeers>(&message)) {
        round = 0;
        peers = all->peers;
      } else if (const auto* next = std::get_if<PathRound>(&message)) {
        round = next->round;
      } else {
        end = std::get<PathEnd>(message);
      }
    }
  }

  PathTestCoordinator::Time now_{};
  PathTestCoordinator coordinator_;
  int count_;
};

}  // namespace

TEST_CASE("workers try all paths at once, then one each in rounds") {
  Workers workers(3);
  workers.come(0);
  workers.come(2);
  CHECK(workers.round == -1);
  workers.come(1);
  CHECK(workers.round == 0);
  REQUIRE(workers.peers.size() == 3);
  CHECK(workers.peers[1].id == "id of node1");
  CHECK(workers.peers[0].host.address.empty());  // each uses its own path to it
  for (const int next : {1, 2}) {
    workers.report_all();
    CHECK(workers.round == next);
    CHECK(!workers.end);
  }
  workers.report_all();
  REQUIRE(workers.coordinator().is_done());
  CHECK(workers.end->lost.empty());
  const HostsFacts facts = workers.facts();
  CHECK(facts.has_all);
  REQUIRE(facts.hosts.size() == 3);
  CHECK(facts.hosts[0].address == "10.9.0.1");
  CHECK(facts.hosts[2].rank == 2);
  CHECK(facts.paths.size() == 6);
  for (const PathFacts& path : facts.paths) {
    CHECK(path.fault == PathFault::none);
    CHECK(path.round_trip_seconds == 1);  // of round 0
    CHECK(path.bytes_per_second > 100);   // of a later round
  }
}

TEST_CASE("a worker that does not come is lost, and the others go on") {
  Workers workers(3);
  workers.come(0);
  workers.come(1);
  workers.wait(PathTestCoordinator::kHelloTime);
  REQUIRE(workers.round == 0);
  CHECK(workers.peers[2].port == 0);
  while (!workers.end) {
    workers.report(0, {1});
    workers.report(1, {0});
  }
  const HostsFacts facts = workers.facts();
  CHECK(facts.lost == std::vector<std::string>{"rank 2"});
  CHECK(find_path(facts, 0, 1)->fault == PathFault::none);
  CHECK(find_path(facts, 2, 1)->fault == PathFault::untried);
}

TEST_CASE("a worker that falls silent or leaves holds up nobody") {
  const bool leaves = GENERATE(true, false);
  Workers workers(3);
  workers.come_all();
  workers.report_all(2);
  CHECK(workers.round == 0);
  if (leaves) {
    workers.leave(2);
  } else {
    workers.wait(PathTestCoordinator::kRoundTime);
  }
  CHECK(workers.round == 1);
  CHECK(workers.coordinator().ranks().size() == 2);
  workers.report_all(2);
  workers.report_all(2);
  REQUIRE(workers.end);
  CHECK(workers.end->lost == std::vector<std::string>{"node2"});
}

TEST_CASE("a worker alone is done at once") {
  Workers workers(1);
  workers.come(0);
  workers.report(0, {});
  REQUIRE(workers.end);
  CHECK(workers.facts().hosts.size() == 1);
}

TEST_CASE("after a minute no round begins") {
  Workers workers(8);
  workers.come_all();
  int rounds = 0;
  for (; !workers.end; ++rounds) {
    workers.wait(PathTestCoordinator::kRoundTime - 1s);
    workers.report_all();
  }
  CHECK(rounds == 7);  // of eight: the seventh begins after 54 s
  int unmeasured = 0;
  for (const PathFacts& path : workers.facts().paths) {
    CHECK(path.fault == PathFault::none);
    unmeasured += path.bytes_per_second == 100 ? 1 : 0;
  }
  CHECK(unmeasured == 8);
}

TEST_CASE("reports that nobody asked for count for nothing") {
  Workers workers(2);
  workers.come(0);
  workers.say(11, PathHello{5, Workers::hello(5).peer});  // no such rank
  workers.say(12, Workers::hello(0));                     // rank 0 is there
  CHECK(workers.round == -1);
  workers.come(1);
  const PathFacts good{.to = 0, .fault = PathFault::none};
  workers.say(11, PathReport{1, 5, {good}});
  workers.say(99, PathReport{1, 0, {good}});
  workers.say(11, PathReport{0, 0, {good}});
  CHECK(workers.round == 0);
  workers.say(11, PathReport{1, 0, {{.to = 200}, {.to = 1}}});
  workers.say(10, PathReport{0, 0, {}});
  CHECK(workers.round == 1);
  for (const PathFacts& path : workers.facts().paths) {
    CHECK(path.fault == PathFault::untried);
  }
}

TEST_CASE("the output of a path test") {
  const std::string hello = encode_path(Workers::hello(1));
  const std::string peers =
      encode_path(PathPeers{{Workers::hello(0).peer, Workers::hello(1).peer}});
  const PathReport report{1, 0, {{.to = 0, .fault = PathFault::refused}}};
  const std::string whole =
      hello + peers + encode_path(report) + encode_path(PathEnd{});
  const HostsFacts facts = parse_path_test("a greeting\n" + whole);
  CHECK(facts.own == 1);
  CHECK(!facts.has_all);
  REQUIRE(facts.paths.size() == 1);
  CHECK(facts.paths[0].from == 1);
  CHECK(facts.paths[0].fault == PathFault::refused);
  // Workers that are restarted begin again.
  CHECK(parse_path_test(whole + whole).paths.size() == 1);
  CHECK(parse_path_test(hello + peers).hosts.empty());
  CHECK(parse_path_test(hello + encode_path(PathFailure{"no way"})).error ==
        "no way");
}
