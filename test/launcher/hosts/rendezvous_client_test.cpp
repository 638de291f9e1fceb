#include "launcher/hosts/member/rendezvous_client.h"

#include "launcher/base/overloaded.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace std::chrono_literals;
using std::chrono::nanoseconds;

namespace {

std::string told(const HostState& state) {
  return "tell " + std::to_string(state.generation) +
         (state.joins ? " joins" : "") +
         (!state.outcome                                       ? ""
          : std::holds_alternative<HostFailed>(*state.outcome) ? " failed"
                                                               : " succeeded");
}

std::string done_by(const RendezvousClient::Action& action) {
  return std::visit(
      Overloaded{[](const RendezvousClient::Connect&) -> std::string {
                   return "connect";
                 },
                 [](const RendezvousClient::Disconnect&) -> std::string {
                   return "disconnect";
                 },
                 [](const Message& message) -> std::string {
                   const auto* state = std::get_if<HostState>(&message);
                   return state != nullptr ? told(*state)
                          : std::holds_alternative<Hello>(message) ? "hello"
                                                                   : "goodbye";
                 },
                 [](const RendezvousAnswer& answer) -> std::string {
                   constexpr const char* kNames[] = {
                       "FORMED", "BROKEN", "LOST", "CLOSED", "NOTE"};
                   return kNames[answer.index()];
                 }},
      action);
}

std::string done_by(const RendezvousClient::Actions& actions) {
  std::string text;
  for (const auto& action : actions) {
    text += (text.empty() ? "" : ", ") + done_by(action);
  }
  return text;
}

WorldFormed entering(int generation) {
  return {{.generation = generation, .host_rank = 1, .host_count = 2}};
}

Broken breaking(int generation) {
  return {generation, {WorldBroken::Change::failed, "b"}};
}

RendezvousClient member_of(const std::string& local_address = "") {
  RendezvousClient::Options options;
  options.endpoint = "a:1";
  options.local_address = local_address;
  return RendezvousClient(options);
}

/// A rendezvous client and its clock.
struct MemberHost {
  RendezvousClient::Time now = RendezvousClient::Time() + 1h;
  RendezvousClient member = member_of();

  std::string join() { return done_by(member.join(1000, now)); }
  std::string open() { return done_by(member.on_connected("10.0.0.2", now)); }
  std::string close() { return done_by(member.on_closed(now)); }
  /// Ends the connection where no coordinator listens any more.
  std::string close_for_good() {
    return done_by(member.on_closed(now, "why", /*is_gone=*/true));
  }
  std::string hear(const Message& message) {
    return done_by(member.on_message(message, now));
  }
  std::string report(const HostOutcome& outcome) {
    return done_by(member.report(outcome, now));
  }
  /// Advances the clock and returns all actions that follow from time alone.
  std::string pass(std::chrono::milliseconds time) {
    std::string text;
    const auto end = now + time;
    while (member.next_deadline() && *member.next_deadline() <= end) {
      now = std::max(now, *member.next_deadline());
      const std::string next = done_by(member.on_time(now));
      text += (text.empty() || next.empty() ? "" : ", ") + next;
    }
    now = end;
    return text;
  }

  /// Brings the client into the world of generation 0.
  void enter() {
    CHECK(join() == "connect");
    CHECK(open() == "hello, tell -1 joins");
    CHECK(hear(entering(0)) == "tell 0, FORMED");
    CHECK(hear(Noted{}).empty());
  }
};

enum class MemberStage {
  before,
  connecting,
  joining,
  working,
  succeeded,
  over
};

MemberHost host_in(MemberStage stage) {
  MemberHost host;
  if (stage == MemberStage::connecting) {
    host.join();
  } else if (stage == MemberStage::joining) {
    host.join();
    host.open();
  } else if (stage >= MemberStage::working) {
    host.enter();
  }
  if (stage == MemberStage::succeeded) {
    host.report(HostSucceeded{});
  }
  if (stage == MemberStage::over) {
    host.hear(JobClosed{0});
  }
  return host;
}

}  // namespace

TEST_CASE("a member: every message in every stage") {
  struct Row {
    Message message;
    const char* expected[6];
  };
  const std::vector<Row> table = {
      // before, connecting, joining, working, succeeded, over
      {entering(0), {"", "", "tell 0, FORMED", "", "", ""}},
      {entering(1), {"", "", "tell 1, FORMED", "", "", ""}},
      {breaking(0), {"", "", "", "BROKEN", "BROKEN", ""}},
      {breaking(7), {"", "", "", "", "", ""}},
      {Noted{}, {"", "", "", "", "", ""}},
      {JobClosed{3},
       {"",
        "",
        "disconnect, CLOSED",
        "disconnect, CLOSED",
        "disconnect, CLOSED",
        ""}},
      {RendezvousLost{"no"},
       {"",
        "",
        "disconnect, LOST",
        "disconnect, LOST",
        "disconnect, LOST",
        ""}},
      {Hello{}, {"", "", "", "", "", ""}},
      {HostState{}, {"", "", "", "", "", ""}},
      {Goodbye{}, {"", "", "", "", "", ""}},
  };
  for (const Row& row : table) {
    for (int stage = 0; stage < 6; ++stage) {
      MemberHost host = host_in(static_cast<MemberStage>(stage));
      CAPTURE(row.message.index(), stage);
      CHECK(host.hear(row.message) == row.expected[stage]);
    }
  }
}

TEST_CASE("a job of two worlds, as a member sees it") {
  MemberHost host;
  host.enter();
  CHECK(host.report(HostFailed{3, {.code = 1}}) == "tell 0 failed");
  // The client repeats the failure until the next world, in case it was lost.
  CHECK(host.join() == "tell 0 joins failed");
  CHECK(host.hear(entering(0)).empty());
  CHECK(host.hear(entering(1)) == "tell 1, FORMED");
  CHECK(host.hear(entering(1)).empty());
  CHECK(host.hear(breaking(0)).empty());
  CHECK(host.hear(breaking(1)) == "BROKEN");
  CHECK(host.hear(breaking(1)).empty());
  CHECK(host.join() == "tell 1 joins");
  CHECK(done_by(host.member.leave()) == "goodbye, disconnect");
  CHECK(!host.member.next_deadline());
}

TEST_CASE("a member gives a sign of life in each interval") {
  MemberHost host;
  host.enter();
  for (int beat = 0; beat < 5; ++beat) {
    CHECK(host.pass(5s) == "tell 0");
    host.hear(Noted{});
  }
}

TEST_CASE("a coordinator that is not there yet is tried again") {
  MemberHost host;
  CHECK(host.join() == "connect");
  for (const auto pause : {5ms, 10ms, 20ms, 40ms, 80ms, 160ms, 250ms, 250ms}) {
    CHECK(host.close().empty());
    CHECK(host.pass(pause - 1ms).empty());
    CHECK(host.pass(1ms) == "connect");
  }
  SECTION("and comes") {
    CHECK(host.open() == "hello, tell -1 joins");
  }
  SECTION("and does not answer") {
    CHECK(host.pass(5s) == "NOTE, connect");
  }
  SECTION("until join_timeout") {
    host.now += 5s;
    const std::string text = host.pass(600s);
    CHECK_THAT(text, Catch::Matchers::EndsWith("disconnect, LOST"));
  }
}

TEST_CASE("a connection that is cut is made anew, and the world goes on") {
  MemberHost host;
  host.enter();
  CHECK(host.close().empty());
  CHECK(host.pass(4ms).empty());
  CHECK(host.pass(1ms) == "connect");
  SECTION("it comes back") {
    CHECK(host.open() == "hello, tell 0");
    CHECK(host.hear(Noted{}).empty());
    CHECK(host.pass(5s) == "tell 0");
    CHECK(host.hear(breaking(0)) == "BROKEN");
    CHECK(host.join() == "tell 0 joins");
  }
  SECTION("it comes back when the workers have gone") {
    CHECK(host.join().empty());
    CHECK(host.open() == "hello, tell 0 joins");
  }
  SECTION("what it had to wait for before is forgotten") {
    CHECK(host.open() == "hello, tell 0");
    host.hear(Noted{});
    CHECK(host.close().empty());
    CHECK(host.pass(5ms) == "connect");
    CHECK(host.close().empty());
    CHECK(host.pass(9ms).empty());
    CHECK(host.pass(1ms) == "connect");
  }
  SECTION("no coordinator listens any more") {
    CHECK(host.close_for_good() == "disconnect, LOST");
  }
  SECTION("nobody answers for as long as a silent host is waited for") {
    CHECK(host.pass(15s - 6ms) == "connect, connect");
    CHECK(host.pass(1ms) == "disconnect, LOST");
  }
}

TEST_CASE("a connection without an answer is made anew in time") {
  MemberHost host;
  host.enter();
  CHECK(host.pass(5s) == "tell 0");
  CHECK(host.pass(5s) == "connect");
  SECTION("another one is answered") {
    CHECK(host.open() == "hello, tell 0");
    CHECK(host.hear(Noted{}).empty());
    CHECK(host.pass(5s) == "tell 0");
    CHECK(host.hear(Noted{}).empty());
    CHECK(host.pass(5s) == "tell 0");
  }
  SECTION("none is") {
    CHECK(host.open() == "hello, tell 0");
    CHECK(host.pass(5s - 1ms).empty());
    CHECK(host.pass(1ms) == "disconnect, LOST");
  }
}

TEST_CASE("after a success the end of the job may come late") {
  MemberHost host;
  host.enter();
  CHECK(host.report(HostSucceeded{}) == "tell 0 succeeded");
  CHECK_THAT(host.pass(5s), Catch::Matchers::EndsWith("tell 0 succeeded"));
  CHECK_THAT(host.pass(5s), Catch::Matchers::EndsWith("tell 0 succeeded"));
  CHECK(host.pass(5s) == "disconnect, LOST");
}

TEST_CASE("who takes the connection and says nothing is no coordinator") {
  MemberHost host;
  CHECK(host.join() == "connect");
  SECTION("from the beginning") {
    CHECK(host.open() == "hello, tell -1 joins");
    CHECK(host.pass(5s) == "NOTE, connect");
    for (int round = 0; round < 200 && host.member.next_deadline(); ++round) {
      host.open();
      // As with a socket that is connected to itself.
      CHECK(host.hear(Hello{}).empty());
      CHECK(host.hear(HostState{}).empty());
      host.pass(6s);
    }
    CHECK(!host.member.next_deadline());
    CHECK(host.now - (RendezvousClient::Time() + 1h) < 600s + 12s);
  }
  SECTION("and closes it at once") {
    for (const auto pause : {5ms, 10ms, 20ms, 40ms, 80ms, 160ms, 250ms}) {
      CHECK(host.open() == "hello, tell -1 joins");
      CHECK(host.close().empty());
      CHECK(host.pass(pause - 1ms).empty());
      CHECK(host.pass(1ms) == "connect");
    }
  }
  SECTION("where the coordinator was") {
    host.open();
    host.hear(entering(0));
    CHECK(host.close().empty());
    CHECK(host.pass(5ms) == "connect");
    host.pass(1s);
    CHECK(host.open() == "hello, tell 0");
    CHECK_THAT(host.pass(14s), Catch::Matchers::EndsWith("disconnect, LOST"));
  }
}

TEST_CASE("the address of a store is the connection's, or the user's") {
  for (const std::string named : {"", "ib0.host"}) {
    RendezvousClient member = member_of(named);
    const auto now = RendezvousClient::Time() + 1h;
    member.join(4711, now);
    const auto actions = member.on_connected("10.0.0.2", now);
    REQUIRE(actions.size() == 2);
    const auto state = std::get<HostState>(std::get<Message>(actions[1]));
    CHECK(state.store.host == (named.empty() ? "10.0.0.2" : named));
    CHECK(state.store.port == 4711);
  }
}

TEST_CASE("what a member says when it gives up names the endpoint") {
  MemberHost host;
  host.join();
  const auto lost_text = [](const RendezvousClient::Actions& actions) {
    return std::get<RendezvousLost>(std::get<RendezvousAnswer>(actions.back()))
        .text;
  };
  SECTION("it was refused") {
    host.open();
    CHECK_THAT(
        lost_text(host.member.on_message(RendezvousLost{"why"}, host.now)),
        Contains("a:1") && Contains("why"));
  }
  SECTION("somebody else listens there") {
    host.open();
    CHECK(lost_text(host.member.on_closed(
              host.now, "10.0.0.1: another program answers", true)) ==
          "no ddprun answers at --rdzv-endpoint a:1 (10.0.0.1: another program "
          "answers); start ddprun on that host, and check the name, the port "
          "and the firewall");
  }
  SECTION("somebody listens there and says nothing") {
    RendezvousClient::Actions last;
    while (host.member.next_deadline()) {
      host.open();
      host.now = std::max(host.now, *host.member.next_deadline());
      last = host.member.on_time(host.now);
    }
    CHECK_THAT(lost_text(last), Contains("a:1 (no answer for 5 s); start"));
  }
  SECTION("the coordinator has gone") {
    host.open();
    host.hear(Noted{});
    CHECK(lost_text(host.member.on_closed(host.now, "10.0.0.1: gone", true)) ==
          "the connection to a:1, where the hosts of the job meet, was lost "
          "(10.0.0.1: gone); check the network, and see the messages of the "
          "ddprun on that host");
  }
}

namespace {

/// Returns the note among the client's actions, or "".
std::string note_in(const RendezvousClient::Actions& actions) {
  for (const auto& action : actions) {
    if (const auto* answer = std::get_if<RendezvousAnswer>(&action)) {
      if (const auto* note = std::get_if<RendezvousNote>(answer)) {
        return note->text;
      }
    }
  }
  return "";
}

}  // namespace

TEST_CASE("a host that waits asks what for, and says so once") {
  MemberHost host;
  host.join();
  host.open();
  host.hear(Noted{"too early"});
  std::string said;
  for (int beat = 1; beat <= 90; ++beat) {
    CHECK(host.pass(5s) == "tell -1 joins");
    said += note_in(host.member.on_message(
        Noted{"beat " + std::to_string(beat)}, host.now));
  }
  CHECK(said == "waiting at --rdzv-endpoint a:1: beat 1");
}

TEST_CASE("who works does not wait, who has succeeded does") {
  MemberHost host;
  host.enter();
  for (int beat = 0; beat < 20; ++beat) {
    CHECK(host.pass(5s) == "tell 0");
    CHECK(host.hear(Noted{"nothing"}).empty());
  }
  host.report(HostSucceeded{});
  host.hear(Noted{});
  CHECK_THAT(host.pass(5s), Catch::Matchers::EndsWith("tell 0 succeeded"));
  CHECK(host.hear(Noted{"the end"}) == "NOTE");
  host.hear(breaking(0));
  host.join();
  host.pass(4s);
  CHECK(host.hear(Noted{"all"}).empty());
  host.pass(1s);
  CHECK(host.hear(Noted{"all"}) == "NOTE");
}

TEST_CASE("a host that waits for the coordinator says so without it") {
  MemberHost host;
  host.join();
  host.close();
  host.now += 7s;
  CHECK(note_in(host.member.on_time(host.now)) ==
        "waiting at --rdzv-endpoint a:1: no ddprun has answered there yet; "
        "gives up in 593 s (--rdzv-conf join_timeout)");
  SECTION("and then for the other hosts") {
    host.open();
    CHECK(host.hear(Noted{"b"}).empty());
    CHECK(host.pass(5s) == "tell -1 joins");
    CHECK(host.hear(Noted{"b"}) == "NOTE");
  }
  SECTION("and no more") {
    CHECK_THAT(host.pass(300s), !Contains("NOTE"));
  }
}

TEST_CASE("what people read of the network's is one line") {
  const std::string text = "a\nddprun: \x1b[2J";
  const std::string shown = "a\\nddprun: \\x1b[2J";
  MemberHost host;
  host.enter();
  const auto heard = [&host](const Message& message) {
    const auto actions = host.member.on_message(message, host.now);
    return std::get<RendezvousAnswer>(actions.back());
  };
  SECTION("news") {
    host.report(HostSucceeded{});
    host.hear(Noted{});
    host.pass(5s);
    CHECK_THAT(std::get<RendezvousNote>(heard(Noted{text})).text,
               Catch::Matchers::EndsWith(": " + shown));
  }
  SECTION("who has broken a world") {
    const auto broken = heard(Broken{0, {WorldBroken::Change::left, text}});
    CHECK(std::get<WorldBroken>(broken).host == shown);
  }
  SECTION("why the job is over") {
    CHECK(std::get<JobClosed>(heard(JobClosed{3, text})).text == shown);
  }
  SECTION("why this host is refused") {
    CHECK_THAT(std::get<RendezvousLost>(heard(RendezvousLost{text})).text,
               Catch::Matchers::EndsWith(": " + shown));
  }
}
