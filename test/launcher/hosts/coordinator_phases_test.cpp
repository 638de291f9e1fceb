#include <array>
#include <functional>

#include "test/launcher/hosts/forming_job.h"

using namespace launcher;
using namespace launcher::test;

namespace {

enum class JobStage { gathering, running, broken, closing, done };

/// Returns a job in a stage. Hosts a and b have joined, and from `running` on
/// also c.
FormingJob job_in(JobStage stage) {
  FormingJob job;
  if (stage == JobStage::gathering) {
    job.come(kOwn);
    job.come(1);
    return job;
  }
  job.run();
  if (stage == JobStage::broken) {
    job.close(2);
  }
  if (stage >= JobStage::closing) {
    for (const Coordinator::Connection from : {kOwn, 1ul, 2ul}) {
      job.succeed(from, 0);
    }
  }
  if (stage == JobStage::done) {
    job.close(1);
    job.close(2);
    CHECK(job.get().is_done());
  }
  return job;
}

struct CoordinatorRow {
  const char* what;
  std::function<std::string(FormingJob&)> act;
  const char* expected[5];
};

CoordinatorRow coordinator_row(const char* what,
                               const Message& message,
                               const std::array<const char*, 5>& expected) {
  CoordinatorRow row{
      what, [message](FormingJob& job) { return job.say(1, message); }, {}};
  std::copy(expected.begin(), expected.end(), row.expected);
  return row;
}

HostState stating(int generation,
                  bool joins,
                  std::optional<HostOutcome> outcome = {}) {
  HostState state;
  state.number = 100;
  state.generation = generation;
  state.joins = joins;
  state.outcome = outcome;
  state.store = {"h", 1};
  return state;
}

}  // namespace

// Host b sends the message. In stage `done` the coordinator no longer knows b.
TEST_CASE("every message in every phase") {
  const FormingJob names;
  const std::vector<CoordinatorRow> table = {
      // gathering, running, broken, closing, done
      coordinator_row("a second hello",
                      names.hello(1),
                      {"1 noted",
                       "1 noted",
                       "1 broken 0: c vanished",
                       "1 closed 0",
                       "1 closed 0"}),
      coordinator_row(
          "a host that joins",
          stating(-1, true),
          {"1 noted", "1 formed 0", "1 noted", "1 closed 0", "drop 1"}),
      coordinator_row("a host that works",
                      stating(0, false),
                      {"1 broken 0: where the hosts meet vanished",
                       "1 noted",
                       "1 broken 0: c vanished",
                       "1 closed 0",
                       "drop 1"}),
      coordinator_row("a host that has succeeded",
                      stating(0, false, HostSucceeded{}),
                      {"1 broken 0: where the hosts meet vanished",
                       "1 noted",
                       "1 broken 0: c vanished",
                       "1 closed 0",
                       "drop 1"}),
      coordinator_row(
          "a host that has failed",
          stating(0, false, HostFailed{1, {.code = 3}}),
          {"1 broken 0: where the hosts meet vanished",
           "0 broken 0: b failed, 1 broken 0: b failed, 2 broken 0: b failed",
           "1 broken 0: c vanished",
           "1 closed 0",
           "drop 1"}),
      coordinator_row(
          "a host that joins again",
          stating(0, true),
          {"1 noted", "1 noted", "1 noted", "1 closed 0", "drop 1"}),
      coordinator_row(
          "a host of an older world",
          stating(-1, false),
          {"1 noted", "1 noted", "1 noted", "1 closed 0", "drop 1"}),
      coordinator_row("a host that leaves",
                      Goodbye{},
                      {"drop 1",
                       "drop 1, 0 broken 0: b left, 2 broken 0: b left",
                       "drop 1",
                       "drop 1",
                       "drop 1"}),
      coordinator_row("what only a coordinator says",
                      Noted{},
                      {"drop 1, 1 noted",
                       "drop 1, 1 noted",
                       "drop 1, 1 broken 0: c vanished",
                       "drop 1, 1 closed 0",
                       "drop 1"}),
      coordinator_row("what only a coordinator says",
                      WorldFormed{},
                      {"drop 1, 1 noted",
                       "drop 1, 1 noted",
                       "drop 1, 1 broken 0: c vanished",
                       "drop 1, 1 closed 0",
                       "drop 1"}),
      coordinator_row("what only a coordinator says",
                      Broken{},
                      {"drop 1, 1 noted",
                       "drop 1, 1 noted",
                       "drop 1, 1 broken 0: c vanished",
                       "drop 1, 1 closed 0",
                       "drop 1"}),
      coordinator_row("what only a coordinator says",
                      JobClosed{0},
                      {"drop 1, 1 noted",
                       "drop 1, 1 noted",
                       "drop 1, 1 broken 0: c vanished",
                       "drop 1, 1 closed 0",
                       "drop 1"}),
      coordinator_row("what only a coordinator says",
                      RendezvousLost{""},
                      {"drop 1, 1 noted",
                       "drop 1, 1 noted",
                       "drop 1, 1 broken 0: c vanished",
                       "drop 1, 1 closed 0",
                       "drop 1"}),
      {"a connection ends",
       [](FormingJob& job) { return job.close(1); },
       {"", "0 broken 0: b vanished, 2 broken 0: b vanished", "", "", ""}},
      {"another host comes",
       [](FormingJob& job) { return job.come(3); },
       {"0 formed 0, 1 formed 0, 3 formed 0",
        "3 noted",
        "3 noted",
        "drop 3",
        "drop 3"}},
      {"the coordinator's host leaves",
       [](FormingJob& job) { return job.say(kOwn, Goodbye{}); },
       {"drop 0, 1 closed 1",
        "drop 0, 1 closed 1, 2 closed 1",
        "drop 0, 1 closed 1",
        "drop 0",
        "drop 0"}},
  };
  for (const CoordinatorRow& row : table) {
    for (const JobStage stage : {JobStage::gathering,
                                 JobStage::running,
                                 JobStage::broken,
                                 JobStage::closing,
                                 JobStage::done}) {
      FormingJob job = job_in(stage);
      CAPTURE(row.what, static_cast<int>(stage));
      CHECK(row.act(job) == row.expected[static_cast<int>(stage)]);
    }
  }
}
