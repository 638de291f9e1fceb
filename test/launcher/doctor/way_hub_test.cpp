#include "launcher/doctor/hosts/way_hub.h"

#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace std::chrono_literals;

namespace {

/// A hub, and hosts that are not there.
class Doctors {
 public:
  explicit Doctors(int least, int most, bool ranks_are_fixed = true)
      : hub_({.admission = {.terms = {.run_id = "job",
                                      .least_hosts = least,
                                      .most_hosts = most,
                                      .ranks_are_fixed = ranks_are_fixed},
                            .token = "secret"},
              .wait = 120s,
              .last_call = 30s},
             now_),
        terms_{.run_id = "job",
               .least_hosts = least,
               .most_hosts = most,
               .ranks_are_fixed = ranks_are_fixed} {}

  WayHello hello(int rank) const {
    const std::string name = "node" + std::to_string(rank);
    return {{.token = "secret",
             .terms = terms_,
             .id = "id of " + name,
             .host = name,
             .wanted_rank = rank},
            "10.0.0." + std::to_string(rank),
            4000 + rank};
  }

  /// Of the hub's own host, which others see by their connections.
  void come(WayHub::Connection connection, WayHello hello) {
    if (connection == WayHub::kOwn) {
      hello.address.clear();
    }
    say(connection, hello);
  }
  void say(WayHub::Connection from, const WayMessage& message) {
    const std::string here =
        from == WayHub::kOwn ? "" : "10.9.0." + std::to_string(from);
    keep(hub_.on_message(from, here, message, now_));
  }
  void leave(WayHub::Connection connection) {
    keep(hub_.on_closed(connection, now_));
  }
  void wait(std::chrono::seconds time) {
    now_ += time;
    keep(hub_.on_time(now_));
  }

  /// Every host answers its order, and `change` may make it bad news.
  template <typename Change>
  void answer(Change change) {
    const auto orders = std::move(orders_);
    orders_.clear();
    for (const auto& [connection, order] : orders) {
      WayResults results{order.round, {}};
      for (const WayOrder::Target& target : order.targets) {
        WayFacts way{.to = target.host,
                     .fault = WayFault::none,
                     .round_trip_seconds = 1.0 + order.round,
                     .bytes_per_second = 100.0 * (1 + order.round)};
        change(connection, way);
        results.ways.push_back(way);
      }
      say(connection, results);
    }
  }
  void answer() {
    answer([](WayHub::Connection, WayFacts&) {});
  }

  WayHub& hub() { return hub_; }
  std::map<WayHub::Connection, WayOrder>& orders() { return orders_; }
  std::map<WayHub::Connection, std::string> refusals;
  std::map<WayHub::Connection, WayFarewell> farewells;
  std::set<WayHub::Connection> dropped;

 private:
  void keep(const WayHub::Actions& actions) {
    for (const WayHub::Action& action : actions) {
      if (const auto* drop = std::get_if<WayHub::Drop>(&action)) {
        dropped.insert(drop->connection);
        continue;
      }
      const auto& [to, message] = std::get<WayHub::Send>(action);
      if (const auto* order = std::get_if<WayOrder>(&message)) {
        orders_[to] = *order;
      } else if (const auto* refusal = std::get_if<WayRefusal>(&message)) {
        refusals[to] = refusal->text;
      } else {
        farewells[to] = std::get<WayFarewell>(message);
      }
    }
  }

  WayHub::Time now_{};
  WayHub hub_;
  JobTerms terms_;
  std::map<WayHub::Connection, WayOrder> orders_;
};

}  // namespace

TEST_CASE("hosts try all ways at once, then one each in rounds") {
  Doctors doctors(3, 3);
  doctors.come(WayHub::kOwn, doctors.hello(0));
  doctors.come(8, doctors.hello(2));
  CHECK(doctors.orders().empty());
  doctors.come(7, doctors.hello(1));
  REQUIRE(doctors.orders().size() == 3);
  // By node rank, not as they came.
  const auto& order = doctors.orders()[8];
  REQUIRE(order.targets.size() == 2);
  CHECK(order.targets[0].host == 0);
  CHECK(order.targets[0].address == "10.9.0.8");  // its way to the hub
  CHECK(order.targets[0].id == "id of node0");
  CHECK(order.targets[0].port == 4000);
  CHECK(order.targets[1].host == 1);
  CHECK(order.targets[1].address == "10.0.0.1");
  const int64_t few_bytes = order.bytes;

  doctors.answer();
  for (const int round : {1, 2}) {
    REQUIRE(doctors.orders().size() == 3);
    std::set<int> targets;
    for (const auto& [connection, each] : doctors.orders()) {
      CHECK(each.round == round);
      CHECK(each.bytes > few_bytes);
      REQUIRE(each.targets.size() == 1);
      targets.insert(each.targets[0].host);
    }
    CHECK(targets.size() == 3);  // nobody has two senders
    CHECK(!doctors.hub().is_done());
    doctors.answer();
  }
  REQUIRE(doctors.hub().is_done());
  const HostsFacts facts = doctors.hub().facts();
  CHECK(facts.hosts.size() == 3);
  CHECK(facts.hosts[0].address == "10.9.0.7");
  CHECK(facts.ways.size() == 6);
  for (const WayFacts& way : facts.ways) {
    CHECK(way.fault == WayFault::none);
    CHECK(way.round_trip_seconds == 1);  // of round 0
    CHECK(way.bytes_per_second > 100);   // of a later one
  }
  CHECK(doctors.farewells.size() == 2);
  CHECK(doctors.farewells[8].own == 2);
  CHECK(doctors.dropped == std::set<WayHub::Connection>{7, 8});
}

TEST_CASE("a way that does not connect is measured no further") {
  Doctors doctors(2, 2);
  doctors.come(WayHub::kOwn, doctors.hello(0));
  doctors.come(7, doctors.hello(1));
  doctors.answer([](WayHub::Connection from, WayFacts& way) {
    way.fault = from == 7 ? WayFault::refused : WayFault::none;
  });
  CHECK(doctors.orders().size() == 1);
  CHECK(doctors.orders().count(WayHub::kOwn) == 1);
  doctors.answer();
  REQUIRE(doctors.hub().is_done());
  for (const WayFacts& way : doctors.hub().facts().ways) {
    CHECK(way.fault == (way.from == 1 ? WayFault::refused : WayFault::none));
  }
}

TEST_CASE("hosts that do not come are waited for no longer than is said") {
  Doctors doctors(3, 3);
  doctors.come(WayHub::kOwn, doctors.hello(0));
  doctors.come(7, doctors.hello(2));
  doctors.wait(119s);
  CHECK(doctors.orders().empty());
  doctors.wait(1s);
  CHECK(doctors.orders().size() == 2);
  doctors.answer();
  doctors.answer();
  REQUIRE(doctors.hub().is_done());
  const HostsFacts facts = doctors.hub().facts();
  CHECK(facts.waited_seconds == 120);
  REQUIRE(facts.hosts.size() == 2);
  CHECK(facts.hosts[1].rank == 2);
  CHECK(doctors.farewells[7].waited_seconds == 120);
}

TEST_CASE("once there are enough hosts, others are waited for a little") {
  Doctors doctors(1, 4, false);
  doctors.come(WayHub::kOwn, doctors.hello(0));
  doctors.come(7, doctors.hello(0));
  doctors.wait(30s);
  CHECK(doctors.orders().size() == 2);
}

TEST_CASE("the hub alone is done when nobody comes") {
  Doctors doctors(2, 2);
  doctors.come(WayHub::kOwn, doctors.hello(0));
  doctors.wait(120s);
  REQUIRE(doctors.hub().is_done());
  CHECK(doctors.hub().facts().hosts.size() == 1);
}

TEST_CASE("a host that falls silent or leaves holds up nobody") {
  const bool leaves = GENERATE(true, false);
  Doctors doctors(3, 3);
  doctors.come(WayHub::kOwn, doctors.hello(0));
  doctors.come(7, doctors.hello(1));
  doctors.come(8, doctors.hello(2));
  doctors.orders().erase(8);
  doctors.answer();
  CHECK(doctors.orders().empty());
  if (leaves) {
    doctors.leave(8);
  } else {
    doctors.wait(WayHub::kRoundTime);
    CHECK(doctors.dropped == std::set<WayHub::Connection>{8});
  }
  CHECK(!doctors.orders().empty());
  doctors.answer();
  doctors.answer();
  REQUIRE(doctors.hub().is_done());
  CHECK(doctors.hub().facts().lost == std::vector<std::string>{"node2"});
  CHECK(doctors.farewells.size() == 1);
}

TEST_CASE("after a minute no round begins") {
  Doctors doctors(8, 8);
  for (int rank = 0; rank < 8; ++rank) {
    doctors.come(static_cast<WayHub::Connection>(rank), doctors.hello(rank));
  }
  int rounds = 0;
  for (; !doctors.hub().is_done(); ++rounds) {
    doctors.wait(WayHub::kRoundTime - 1s);
    doctors.answer();
  }
  CHECK(rounds == 7);  // of eight: the seventh begins after 54 s
  int unmeasured = 0;
  for (const WayFacts& way : doctors.hub().facts().ways) {
    CHECK(way.fault == WayFault::none);
    unmeasured += way.bytes_per_second == 100 ? 1 : 0;
  }
  CHECK(unmeasured == 8);
}

TEST_CASE("who may not take part is told why") {
  Doctors doctors(2, 2);
  doctors.come(WayHub::kOwn, doctors.hello(0));
  WayHello stranger = doctors.hello(1);
  stranger.hello.token = "guess";
  doctors.come(7, stranger);
  CHECK_THAT(doctors.refusals[7], Contains("DDPRUN_TOKEN"));
  WayHello other = doctors.hello(1);
  other.hello.terms.most_hosts = 3;
  doctors.come(8, other);
  CHECK_THAT(doctors.refusals[8], Contains("--nnodes"));
  WayHello twin = doctors.hello(0);
  twin.hello.id = "another id";
  doctors.come(9, twin);
  CHECK_THAT(doctors.refusals[9], Contains("--node-rank 0 of one host"));
  WayHello name = doctors.hello(1);
  name.address = "elsewhere.example";
  doctors.come(10, name);
  CHECK_THAT(doctors.refusals[10], Contains("expected an IP address"));
  CHECK(doctors.dropped == std::set<WayHub::Connection>{7, 8, 9, 10});
  CHECK(doctors.orders().empty());
}

TEST_CASE("results that nobody has asked for count for nothing") {
  Doctors doctors(2, 2);
  doctors.come(WayHub::kOwn, doctors.hello(0));
  doctors.come(7, doctors.hello(1));
  const WayFacts good{.to = 0, .fault = WayFault::none};
  doctors.say(7, WayResults{5, {good}});
  doctors.say(99, WayResults{0, {good}});
  doctors.say(7, WayResults{0, {{.to = 200}, {.to = 1}}});
  doctors.say(WayHub::kOwn, WayResults{0, {}});
  CHECK(doctors.hub().is_done());
  for (const WayFacts& way : doctors.hub().facts().ways) {
    CHECK(way.fault == WayFault::untried);
  }
}
