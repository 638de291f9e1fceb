#include "launcher/coordinator/first_failure.h"

#include <functional>
#include <map>
#include <vector>

#include "launcher/coordinator/coordinator.h"
#include "launcher/coordinator/told_failures.h"
#include "launcher/overloaded.h"
#include "launcher/rendezvous/member.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace std::chrono_literals;

namespace {

using std::chrono::nanoseconds;

ToldFailures::Told told_by(const std::string& host,
                           int rank,
                           std::optional<RemoteTime> time = {}) {
  return {host, host, HostFailed{rank, {.code = 3}, false, time}};
}

}  // namespace

TEST_CASE("the earliest failure is the first, whichever was told first") {
  ToldFailures failures;
  failures.add(told_by("a", 1, RemoteTime{30ms, 1ms}));
  failures.add(told_by("b", 2, RemoteTime{10ms, 2ms}));
  failures.add(told_by("c", 3, RemoteTime{20ms, 3ms}));
  failures.add(told_by("a", 4, RemoteTime{5ms, 1ms}));  // its second
  CHECK(failures.first().host == "b");
  const FirstFailure order = failures.order();
  CHECK(order.rank == 2);
  CHECK(order.host == "b");
  REQUIRE(order.next);
  CHECK(order.next->rank == 3);
  CHECK(order.next->host == "c");
  CHECK(order.next->later == nanoseconds(10ms));
  CHECK(order.next->clock_error == 5ms);
  failures.clear();
  failures.add(told_by("c", 3));
  CHECK(failures.first().host == "c");
  CHECK(!failures.order().next);
}

TEST_CASE("without times what was told first is the first") {
  ToldFailures failures;
  failures.add(told_by("a", 1));
  failures.add(told_by("b", 2, RemoteTime{10ms, 2ms}));
  CHECK(failures.first().host == "a");
  REQUIRE(failures.order().next);
  CHECK(!failures.order().next->later);
}

TEST_CASE("how failures of two hosts are told apart") {
  FirstFailure first{3, "b"};
  CHECK(order_text(first).empty());
  first.next = FirstFailure::Next{7, "a"};
  CHECK(order_text(first) ==
        "rank 7 on host a failed, too: which was first is not known, as their "
        "hosts' clocks were not compared yet");
  first.next->later = 12'345us;
  first.next->clock_error = 200us;
  CHECK(order_text(first) ==
        "12.345 ms before rank 7 on host a (clocks agree to within 0.200 ms)");
  first.next->clock_error = 12'345us;
  CHECK(order_text(first) ==
        "rank 7 on host a failed 12.345 ms later: which was first is not "
        "known, as the hosts' clocks agree to within 12.345 ms");
}

namespace {

/// Two hosts, of which the first coordinates, with clocks of their own and a
/// way between them that takes its time.
class TwoHosts {
 public:
  explicit TwoHosts(int max_restarts = 0) {
    terms_.max_restarts = max_restarts;
    coordinator_.emplace(
        Coordinator::Options{.terms = terms_, .start_hosts = 2}, time(0));
    for (const size_t host : {0u, 1u}) {
      Hello hello;
      hello.terms = terms_;
      hello.id = hello.host = host == 0 ? "a" : "b";
      members_.emplace_back(Member::Options{.hello = hello, .endpoint = "a:1"});
      perform(host, members_[host].join(1000, time(host)));
    }
  }

  /// Both ways, between the hosts.
  void set_way(nanoseconds way) { way_ = way; }
  void fail_at(nanoseconds when, size_t host, int rank) {
    queue_.emplace(when, [this, host, rank] {
      perform(host,
              members_[host].report(
                  HostFailed{rank, {.code = 3}, terms_.max_restarts == 0},
                  time(host)));
    });
  }
  void run_until(nanoseconds end) {
    for (;;) {
      size_t due = 2;
      nanoseconds next = end;
      for (const size_t host : {0u, 1u}) {
        const auto deadline = members_[host].next_deadline();
        if (deadline && *deadline - time(host) + now_ < next) {
          due = host;
          next = std::max(*deadline - time(host), nanoseconds(0)) + now_;
        }
      }
      if (!queue_.empty() && queue_.begin()->first <= next) {
        now_ = std::max(now_, queue_.begin()->first);
        const auto act = queue_.begin()->second;
        queue_.erase(queue_.begin());
        act();
        continue;
      }
      now_ = next;
      if (due == 2) {
        return;
      }
      perform(due, members_[due].on_time(time(due)));
    }
  }

  std::map<size_t, std::vector<RendezvousAnswer>> answers;

  const JobClosed& closed(size_t host) {
    return std::get<JobClosed>(answers[host].back());
  }

 private:
  using Time = Coordinator::Time;

  /// a's clock is far ahead.
  Time time(size_t host) const { return Time(now_ + (host == 0 ? 1000h : 1h)); }
  void perform(size_t host, const Member::Actions& actions) {
    for (const auto& action : actions) {
      std::visit(
          Overloaded{
              [&](const Member::Connect&) {
                arrive(host, [this, host] {
                  perform(host, members_[host].on_connected("h", time(host)));
                });
              },
              [&](const Member::Disconnect&) {
                arrive(host, [this, host] {
                  perform(coordinator_->on_closed(host, time(0)));
                });
              },
              [&](const Message& message) {
                arrive(host, [this, host, message] {
                  perform(coordinator_->on_message(host, message, time(0)));
                });
              },
              [&](const RendezvousAnswer& answer) {
                answers[host].push_back(answer);
              }},
          action);
    }
  }
  void perform(const Coordinator::Actions& actions) {
    for (const auto& action : actions) {
      if (const auto* send = std::get_if<Coordinator::Send>(&action)) {
        const size_t host = send->to;
        arrive(host, [this, host, message = send->message] {
          perform(host, members_[host].on_message(message, time(host)));
        });
      }
    }
  }
  void arrive(size_t host, const std::function<void()>& act) {
    queue_.emplace(now_ + (host == 0 ? 0ns : way_), act);
  }

  JobTerms terms_{.run_id = "job", .least_hosts = 2, .most_hosts = 2};
  nanoseconds now_{0};
  nanoseconds way_ = 1ms;
  std::optional<Coordinator> coordinator_;
  std::vector<Member> members_;
  std::multimap<nanoseconds, std::function<void()>> queue_;
};

}  // namespace

TEST_CASE("two hosts fail, and the news of the first comes last") {
  TwoHosts hosts;
  hosts.run_until(20s);
  REQUIRE(hosts.answers[0].size() == 1);
  REQUIRE(hosts.answers[1].size() == 1);
  SECTION("its failure is the cause, on both hosts") {
    hosts.set_way(200ms);  // the clocks were compared when it was quick
    hosts.fail_at(20s + 100ms, 1, 7);
    hosts.fail_at(20s + 200ms, 0, 3);
    hosts.run_until(30s);
    for (const size_t host : {0u, 1u}) {
      CAPTURE(host);
      const JobClosed& closed = hosts.closed(host);
      CHECK(closed.exit_code == 3);
      CHECK_THAT(closed.text,
                 Contains("rank 7 on host b failed: exit code 3; 1") &&
                     Contains("before rank 3 on host a (clocks agree to"));
      REQUIRE(closed.first);
      CHECK(closed.first->rank == 7);
      CHECK(closed.first->host == "b");
      REQUIRE(closed.first->next);
      CHECK(closed.first->next->rank == 3);
      CHECK(closed.first->next->is_certain());
      REQUIRE(closed.first->next->later);
      CHECK(std::chrono::abs(*closed.first->next->later - 100ms) <=
            closed.first->next->clock_error);
    }
  }
  SECTION("in a shorter time than their clocks can tell") {
    hosts.fail_at(20s + 100ms, 1, 7);
    hosts.fail_at(20s + 100ms + 500us, 0, 3);
    hosts.run_until(30s);
    for (const size_t host : {0u, 1u}) {
      const JobClosed& closed = hosts.closed(host);
      REQUIRE(closed.first);
      REQUIRE(closed.first->next);
      CHECK(!closed.first->next->is_certain());
      CHECK(closed.first->rank == hosts.closed(0).first->rank);
      CHECK_THAT(closed.text, Contains("which was first is not known"));
    }
  }
}

TEST_CASE("a failure elsewhere that was first is why a world is broken") {
  TwoHosts hosts(/*max_restarts=*/1);
  hosts.run_until(20s);
  hosts.set_way(200ms);
  hosts.fail_at(20s + 100ms, 1, 7);
  hosts.fail_at(20s + 200ms, 0, 3);
  hosts.run_until(24s);
  REQUIRE(hosts.answers[0].size() == 2);
  const auto& broken = std::get<WorldBroken>(hosts.answers[0].back());
  CHECK(broken.change == WorldBroken::Change::failed);
  CHECK(broken.host == "b");
  CHECK(hosts.answers[1].size() == 1);  // its own failure counts
}
