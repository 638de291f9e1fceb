#include "launcher/hosts/protocol/message.h"

#include <algorithm>
#include <map>

#include "launcher/hosts/coordinator/rank_assignment.h"
#include "test/support/catch.h"

using namespace launcher;

namespace {

std::vector<Message> every_message() {
  Hello hello;
  hello.token = "s\"ecret\n";
  hello.terms = {
      .run_id = "job 7", .least_hosts = 2, .most_hosts = 4, .max_restarts = 3};
  hello.id = "17-4";
  hello.host =
      "n\xc3\xb6"
      "de";
  hello.role = "trainer";
  hello.worker_count = 8;
  Hello wanting = hello;
  wanting.wanted_rank = 3;
  wanting.terms.ranks_are_fixed = true;
  HostState state;
  state.number = int64_t{1} << 40;
  state.generation = 5;
  state.host_rank = 2;
  state.joins = true;
  state.store = {"fe80::1", 29500};
  HostState succeeded = state;
  succeeded.outcome = HostSucceeded{};
  HostState failed = state;
  failed.outcome = HostFailed{11, {.signal = 9}, true, "no such program"};
  JobClosed alone{7, "rank 3 failed"};
  alone.first = FirstFailure{3, "b"};
  World world{.generation = 3,
              .restarts = 1,
              .host_rank = 1,
              .host_count = 2,
              .first_rank = 4,
              .world_size = 12,
              .master = {"10.0.0.1", 4711}};
  world.role = RoleRanks{1, 7};
  return {hello,
          wanting,
          state,
          succeeded,
          failed,
          Goodbye{},
          Noted{},
          Noted{"1 of 2 hosts is here"},
          WorldFormed{world},
          Broken{4, {WorldBroken::Change::left, "b"}},
          Broken{4, {WorldBroken::Change::vanished, "b", "silent for 15 s"}},
          alone,
          RendezvousLost{"no"}};
}

}  // namespace

TEST_CASE("every message arrives as it was sent, in one line") {
  for (const Message& message : every_message()) {
    const std::string line = encode(message);
    CAPTURE(line);
    CHECK(line.find('\n') == line.size() - 1);
    CHECK(line.size() < 512);
    const auto decoded = decode(line);
    REQUIRE(decoded);
    CHECK(decoded->index() == message.index());
    CHECK(encode(*decoded) == line);
  }
}

TEST_CASE("what a failure is known by arrives") {
  JobClosed closed{1};
  closed.first = FirstFailure{5, "b"};
  const auto first = std::get<JobClosed>(*decode(encode(closed))).first;
  REQUIRE(first);
  CHECK(first->rank == 5);
  CHECK(first->host == "b");
}

TEST_CASE("what is no message is nothing") {
  for (const std::string line : {"",
                                 "\n",
                                 "{",
                                 "[]",
                                 "7",
                                 "{}",
                                 R"({"is":7})",
                                 R"({"is":"hello"})",
                                 R"({"is":"bye"})",
                                 R"({"is":"broken","generation":1})",
                                 R"({"is":"closed","code":256,"text":""})",
                                 R"({"is":"closed","code":-1,"text":""})",
                                 R"({"is":"closed","code":0.5,"text":""})",
                                 R"({"is":"closed","code":1e99,"text":""})"}) {
    CAPTURE(line);
    CHECK(!decode(line));
  }
  CHECK(!decode(std::string(kLongestMessage + 1, ' ')));
  CHECK(!decode(std::string(kLongestMessage, '[')));
}

TEST_CASE("every field is asked for, of its type and in its bounds") {
  for (const Message& message : every_message()) {
    const std::string line = encode(message);
    // Replaces each value in turn by values that no field accepts.
    for (size_t at = line.find("\":"); at != std::string::npos;
         at = line.find("\":", at + 1)) {
      const size_t end = line.find_first_of(",}", at);
      for (const std::string value :
           {"null", "[1]", "-2", "18446744073709551615", "{\"a\":{}}"}) {
        CAPTURE(line, at, value);
        CHECK(!decode(line.substr(0, at + 2) + value + line.substr(end)));
      }
    }
  }
}

TEST_CASE("a hello of another version is understood as such") {
  const auto decoded = decode(R"({"is":"hello","version":7,"news":[]})");
  REQUIRE(decoded);
  CHECK(std::get<Hello>(*decoded).version == 7);
}

TEST_CASE("texts are cut, names that are too long are not taken") {
  const std::string text(1'000'000, '\x01');
  const std::string line = encode(JobClosed{1, text});
  CHECK(line.size() <= kLongestMessage);
  const auto decoded = decode(line);
  REQUIRE(decoded);
  CHECK(std::get<JobClosed>(*decoded).text.size() == 2000);
  CHECK(decode(encode(JobClosed{1, std::string(3000, '\xff')})));
  Hello hello;
  hello.terms.run_id = std::string(256, 'x');
  CHECK(decode(encode(hello)));
  hello.terms.run_id += "x";
  CHECK(!decode(encode(hello)));
}

TEST_CASE("ranks go to survivors, earlier hosts, then hosts with a wish") {
  const std::vector<Candidate> candidates = {
      {.worker_count = 1, .role = "a", .store = {"new", 1}},
      {.worker_count = 2, .role = "a", .store = {"wish", 2}, .wanted_rank = 0},
      {.worker_count = 3,
       .role = "b",
       .store = {"second", 3},
       .earlier_rank = 4,
       .is_survivor = true},
      {.worker_count = 4, .role = "a", .store = {"back", 4}, .earlier_rank = 0},
      {.worker_count = 5,
       .role = "a",
       .store = {"first", 5},
       .earlier_rank = 2,
       .is_survivor = true}};
  const auto worlds = assign_ranks(candidates, 4);
  REQUIRE(worlds.size() == 5);
  CHECK(!worlds[0]);  // spare
  const auto check = [&](size_t index, int host_rank, int first_rank) {
    CAPTURE(index);
    REQUIRE(worlds[index]);
    CHECK(worlds[index]->host_rank == host_rank);
    CHECK(worlds[index]->first_rank == first_rank);
    CHECK(worlds[index]->host_count == 4);
    CHECK(worlds[index]->world_size == 14);
    CHECK(worlds[index]->master.host == "first");
    CHECK(worlds[index]->master.port == 5);
  };
  check(4, 0, 0);
  check(2, 1, 5);
  check(3, 2, 8);
  check(1, 3, 12);
  CHECK(worlds[2]->role->size == 3);
  CHECK(worlds[2]->role->first_rank == 0);
  CHECK(worlds[1]->role->size == 11);
  CHECK(worlds[1]->role->first_rank == 9);
}

TEST_CASE("seats: ranks of the world and of each role are without a gap") {
  const std::vector<Candidate> hosts[] = {
      {{.worker_count = 8, .role = "master"},
       {.worker_count = 1, .role = "trainer"},
       {.worker_count = 5, .role = "ps"},
       {.worker_count = 2, .role = "trainer"},
       {.worker_count = 3, .role = "trainer"},
       {.worker_count = 2, .role = "ps"},
       {.worker_count = 4, .role = "trainer"}},
      {{.worker_count = 4, .role = "trainer"},
       {.worker_count = 3, .role = "ps"},
       {.worker_count = 4, .role = "trainer"},
       {.worker_count = 1, .role = "master"},
       {.worker_count = 3, .role = "ps"}}};
  for (const auto& candidates : hosts) {
    int workers = 0;
    std::map<std::string, int> workers_of;
    for (const Candidate& candidate : candidates) {
      workers += candidate.worker_count;
      workers_of[candidate.role] += candidate.worker_count;
    }
    std::vector<int> taken(workers);
    std::map<std::string, std::vector<int>> taken_of;
    const auto worlds =
        assign_ranks(candidates, static_cast<int>(candidates.size()));
    REQUIRE(worlds.size() == candidates.size());
    for (size_t index = 0; index < worlds.size(); ++index) {
      const std::string& role = candidates[index].role;
      REQUIRE(worlds[index]);
      CHECK(worlds[index]->world_size == workers);
      CHECK(worlds[index]->role->size == workers_of[role]);
      taken_of[role].resize(workers_of[role]);
      for (int local = 0; local < candidates[index].worker_count; ++local) {
        ++taken.at(worlds[index]->first_rank + local);
        ++taken_of[role].at(worlds[index]->role->first_rank + local);
      }
    }
    const auto is_one = [](int count) { return count == 1; };
    CHECK(std::all_of(taken.begin(), taken.end(), is_one));
    for (const auto& entry : taken_of) {
      CHECK(std::all_of(entry.second.begin(), entry.second.end(), is_one));
    }
  }
}
