#include "launcher/hosts/etcd/leader_election.h"

#include <algorithm>
#include <utility>

#include "test/support/catch.h"

using namespace launcher;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

using CallOutcome = EtcdAnswer::Outcome;
using CallKind = EtcdCall::Kind;

/// A host, and an etcd that is unreachable or answers as the test says.
class AwayEtcd {
 public:
  static constexpr std::chrono::seconds kJoin{60};
  static constexpr std::chrono::seconds kLease{80};
  static constexpr std::chrono::seconds kEnding{50};

  AwayEtcd()
      : host_({.id = "me",
               .host = "node1",
               .etcd = "etcd at keys:2379",
               .timeouts = {.join = kJoin, .keep_alive = 5s},
               .lease = kLease,
               .ending = kEnding}) {}

  LeaderElection& host() { return host_; }
  LeaderElection::Time now() const { return now_; }
  const std::string& note() const { return note_; }
  const std::string& lost() const { return lost_; }
  int fences() const { return fences_; }
  bool has_resigned() const { return has_resigned_; }

  void take(const LeaderElection::Actions& actions) {
    for (const auto& action : actions) {
      if (const auto* call = std::get_if<EtcdCall>(&action)) {
        asked_ = *call;
      } else if (const auto* answer = std::get_if<RendezvousAnswer>(&action)) {
        if (const auto* note = std::get_if<RendezvousNote>(answer)) {
          note_ = note->text;
        } else if (const auto* lost = std::get_if<RendezvousLost>(answer)) {
          lost_ = lost->text;
        }
      }
      fences_ += std::holds_alternative<LeaderElection::Fence>(action) ? 1 : 0;
      has_resigned_ = has_resigned_ ||
                      std::holds_alternative<LeaderElection::Resign>(action);
    }
  }

  const EtcdCall& open_call() const { return asked_.value(); }

  CallKind answer(const EtcdAnswer& answer) {
    REQUIRE(asked_);
    const CallKind kind = std::exchange(asked_, std::nullopt)->kind;
    take(host_.on_answer(answer, now_));
    return kind;
  }

  /// Answers no call.
  /// @return the time until the host gave up, at most `most`
  std::chrono::milliseconds stay_away(std::chrono::milliseconds most) {
    const LeaderElection::Time begin = now_;
    while (lost_.empty() && now_ - begin < most) {
      if (asked_) {
        now_ += 10ms;
        answer({.outcome = CallOutcome::unreachable, .text = "closed"});
      }
      const auto next = host_.next_deadline();
      now_ =
          std::min(begin + most, std::max(now_, next.value_or(begin + most)));
      take(host_.on_time(now_));
    }
    return std::chrono::duration_cast<std::chrono::milliseconds>(now_ - begin);
  }

  /// Accepts calls without an answer until the host gives up.
  void stay_silent() {
    while (lost_.empty()) {
      now_ = host_.next_deadline().value();
      take(host_.on_time(now_));
    }
  }

  /// Returns the kind of the next call, after advancing the clock to it.
  CallKind next_call() {
    while (!asked_) {
      now_ = std::max(now_, host_.next_deadline().value());
      take(host_.on_time(now_));
    }
    return asked_->kind;
  }

  /// Makes this host the coordinator.
  void lead() {
    take(host_.begin(now_));
    CHECK(answer({.outcome = CallOutcome::done}) == CallKind::read);
    CHECK(answer({.outcome = CallOutcome::done, .revision = 7}) ==
          CallKind::campaign);
    REQUIRE(host_.is_leading());
  }

  EtcdJobState next_record() const {
    EtcdJobState record = host_.saved();
    ++record.generation;
    return record;
  }

 private:
  LeaderElection host_;
  LeaderElection::Time now_ = LeaderElection::Time() + 1h;
  std::optional<EtcdCall> asked_;
  std::string note_;
  std::string lost_;
  bool has_resigned_ = false;
  int fences_ = 0;
};

}  // namespace

TEST_CASE("etcd away before the first group: who comes waits join_timeout") {
  AwayEtcd etcd;
  etcd.take(etcd.host().begin(etcd.now()));
  CHECK(etcd.stay_away(1h) == etcd.kJoin);
  CHECK_THAT(etcd.lost(),
             Contains("etcd at keys:2379 has not answered for 60 s: closed"));
  CHECK_THAT(etcd.note(), Contains("gives up"));
}

TEST_CASE("etcd that is silent from the start: no host is blamed") {
  AwayEtcd etcd;
  etcd.take(etcd.host().begin(etcd.now()));
  const LeaderElection::Time begin = etcd.now();
  etcd.stay_silent();
  CHECK(etcd.now() - begin == etcd.kJoin);
  CHECK_THAT(etcd.lost(),
             Contains("etcd at keys:2379 has not answered in 60 s; check that "
                      "etcd runs there"));
  CHECK_THAT(etcd.note(), Contains("waiting for etcd at keys:2379; gives up"));
}

TEST_CASE("etcd away while workers run: they end before the lease does") {
  AwayEtcd etcd;
  etcd.lead();
  const auto allowed = etcd.kLease - etcd.kEnding;
  CHECK(etcd.stay_away(allowed - 1s) == allowed - 1s);
  CHECK(etcd.fences() == 0);
  CHECK_THAT(etcd.note(), Contains("the job goes on for 2"));
  CHECK(etcd.stay_away(1s) == 1s);
  CHECK(etcd.fences() == 1);
  CHECK(etcd.stay_away(10 * etcd.kJoin) == 10 * etcd.kJoin);
  CHECK(etcd.fences() == 1);
  CHECK(etcd.host().is_leading());
  CHECK_THAT(etcd.note(), Contains("the workers stop until it does"));
  // The leases have expired in the meantime.
  CHECK(etcd.next_call() == CallKind::renew);
  etcd.answer({.outcome = CallOutcome::denied});
  CHECK(etcd.answer({.outcome = CallOutcome::done, .revision = 9}) ==
        CallKind::campaign);
  CHECK(etcd.host().is_leading());
  CHECK(!etcd.has_resigned());
}

TEST_CASE("a group that was ended begins after a renewal, not before") {
  AwayEtcd etcd;
  etcd.lead();
  etcd.stay_away(etcd.kLease);
  CHECK(etcd.fences() == 1);
  etcd.take(etcd.host().save(etcd.next_record(), etcd.now()));
  CHECK(etcd.next_call() == CallKind::renew);
  etcd.answer({.outcome = CallOutcome::done});
  CHECK(etcd.next_call() == CallKind::save);
  etcd.answer({.outcome = CallOutcome::done});
  CHECK(etcd.stay_away(etcd.kLease - etcd.kEnding - 1s) <= etcd.kLease);
  CHECK(etcd.fences() == 1);
  CHECK(etcd.stay_away(2s) == 2s);
  CHECK(etcd.fences() == 2);
}

TEST_CASE("leases are renewed at each keep-alive") {
  AwayEtcd etcd;
  etcd.lead();
  for (int renewals = 0; renewals < 10; ++renewals) {
    const LeaderElection::Time before = etcd.now();
    REQUIRE(etcd.next_call() == CallKind::renew);
    CHECK(etcd.now() - before == 5s);
    etcd.answer({.outcome = CallOutcome::done});
  }
  CHECK(etcd.fences() == 0);
}

TEST_CASE("etcd away while a group forms: it is given up after join_timeout") {
  AwayEtcd etcd;
  etcd.lead();
  CHECK(etcd.stay_away(20s) == 20s);
  const EtcdJobState next = etcd.next_record();
  etcd.take(etcd.host().save(next, etcd.now()));
  const bool comes_back = GENERATE(false, true);
  if (comes_back) {
    CHECK(etcd.stay_away(etcd.kJoin - 1s) == etcd.kJoin - 1s);
    CHECK(etcd.next_call() == CallKind::renew);
    etcd.answer({.outcome = CallOutcome::done});
    CHECK(etcd.next_call() == CallKind::save);
    etcd.answer({.outcome = CallOutcome::done});
    CHECK(etcd.host().saved().generation == next.generation);
    CHECK(etcd.stay_away(5 * etcd.kJoin) == 5 * etcd.kJoin);
  } else {
    CHECK(etcd.stay_away(1h) == etcd.kJoin);
    CHECK_THAT(etcd.note(), Contains("a change of the job's hosts waits"));
    CHECK_THAT(etcd.lost(), Contains("has not answered for 60 s"));
  }
}

TEST_CASE("etcd away when a coordinator is lost: as before the first group") {
  AwayEtcd etcd;
  etcd.take(etcd.host().begin(etcd.now()));
  const CoordinatorPlace place{"other", "node2", {"10.0.0.2", 7}};
  EtcdJobState record;
  record.job = "run";
  etcd.answer({.outcome = CallOutcome::done,
               .coordinator = EtcdEntry{encode(place), 3},
               .record = EtcdEntry{encode(record), 3}});
  REQUIRE(etcd.host().is_following());
  etcd.host().on_coordinator_answered();
  CHECK(etcd.stay_away(5 * etcd.kJoin) == 5 * etcd.kJoin);
  CHECK(etcd.note() == "");
  etcd.take(etcd.host().on_lost(etcd.now()));
  CHECK(etcd.stay_away(1h) == etcd.kJoin);
  CHECK_THAT(etcd.lost(), Contains("has not answered for 60 s: closed"));
}

namespace {

/// Returns etcd's answer while another host coordinates.
EtcdAnswer led_by(const std::string& id,
                  const EtcdJobState& record,
                  CallOutcome outcome = CallOutcome::done) {
  const CoordinatorPlace place{id, "node2", {"10.0.0.2", 7}};
  return {.outcome = outcome,
          .coordinator = EtcdEntry{encode(place), 30},
          .record = EtcdEntry{encode(record), 30},
          .revision = 77};
}

EtcdJobState record_of(const std::string& job) {
  EtcdJobState record;
  record.job = job;
  record.writer = "other";
  return record;
}

}  // namespace

TEST_CASE(
    "a coordinator that cannot be reached keeps its place for its lease") {
  AwayEtcd etcd;
  etcd.take(etcd.host().begin(etcd.now()));
  const EtcdAnswer other = led_by("other", record_of("run"));
  etcd.answer(other);
  REQUIRE(etcd.host().is_following());
  etcd.host().on_coordinator_answered();
  etcd.take(etcd.host().on_lost(etcd.now()));
  for (int reads = 0; reads < 5; ++reads) {
    CHECK(etcd.answer(other) == CallKind::read);
    // Revisions before that of the last answer may be compacted.
    CHECK(etcd.open_call().coordinator_revision == 77);
    CHECK(etcd.answer(other) == CallKind::wait);
  }
  CHECK(etcd.answer({.outcome = CallOutcome::done, .record = other.record}) ==
        CallKind::read);
  CHECK(etcd.next_call() == CallKind::campaign);
}

TEST_CASE("a user who may only read etcd is told at once") {
  AwayEtcd etcd;
  etcd.take(etcd.host().begin(etcd.now()));
  CHECK(etcd.answer({.outcome = CallOutcome::done}) == CallKind::read);
  CHECK(etcd.answer({.outcome = CallOutcome::hopeless,
                     .text = "permission denied"}) == CallKind::campaign);
  CHECK(etcd.lost() == "etcd at keys:2379: permission denied");
}

TEST_CASE("a renewal tells a coordinator that another one is in its place") {
  AwayEtcd etcd;
  etcd.lead();
  CHECK(etcd.next_call() == CallKind::renew);
  etcd.answer(led_by("other", record_of("me"), CallOutcome::denied));
  CHECK(etcd.has_resigned());
  CHECK(etcd.host().is_following());
}

TEST_CASE("a coordinator that leaves keeps its place until its workers end") {
  AwayEtcd etcd;
  etcd.lead();
  etcd.host().leave();
  for (int renewals = 0; renewals < 3; ++renewals) {
    REQUIRE(etcd.next_call() == CallKind::renew);
    etcd.answer({.outcome = CallOutcome::done});
  }
  CHECK(!etcd.host().is_over());
  etcd.take(etcd.host().end(etcd.now()));
  CHECK(etcd.next_call() == CallKind::save);
  etcd.answer({.outcome = CallOutcome::done});
  CHECK(etcd.host().is_over());
}

TEST_CASE("a host that was away for longer than its job's record joins anew") {
  AwayEtcd etcd;
  etcd.lead();
  CHECK(etcd.next_call() == CallKind::renew);
  etcd.answer(led_by("other", record_of("another run"), CallOutcome::denied));
  CHECK(etcd.has_resigned());
  CHECK(etcd.host().is_following());
  CHECK(etcd.lost() == "");
}

TEST_CASE("pauses between calls that fail grow until one is answered") {
  AwayEtcd etcd;
  etcd.take(etcd.host().begin(etcd.now()));
  for (int round = 0; round < 2; ++round) {
    for (const auto pause : {20ms, 40ms, 80ms, 160ms, 320ms, 500ms, 500ms}) {
      etcd.answer({.outcome = CallOutcome::unreachable, .text = "closed"});
      const LeaderElection::Time before = etcd.now();
      CHECK(etcd.next_call() == CallKind::read);
      CHECK(etcd.now() - before == pause);
    }
    etcd.answer(led_by("other", record_of("run")));
  }
}
