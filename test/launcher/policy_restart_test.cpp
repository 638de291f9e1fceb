#include <csignal>
#include <utility>

#include "launcher/job/policy/policy.h"
#include "test/launcher/policy_text.h"
#include "test/support/catch.h"

using namespace launcher;
using namespace launcher::test;
using namespace std::chrono_literals;

TEST_CASE("a hang is a failure: restarts, and after them its end") {
  Policy policy(2,
                {.max_restarts = 1, .grace_period = 7s, .signals = {SIGTERM}});
  const WorkersHang hangs{{.workers = {{.rank = 11, .local_rank = 1}}}};
  policy.on(world_of(0, 0));
  CHECK(step(policy, hangs) ==
        "Send rank 11, Stop SIGTERM, Arm grace 7000, Kill 1 SIGKILL -> "
        "stopping");
  CHECK(step(policy, hangs) == "-");
  CHECK(step(policy, WorkerExited{1, {.signal = SIGKILL}}) == "-");
  CHECK(step(policy, WorkerExited{0, {.signal = SIGTERM}}) == "-");
  CHECK(step(policy, AllAreGone{}) ==
        "Disarm grace, Report hang, Join -> joining");
  policy.on(world_of(1, 1));
  policy.on(hangs);
  CHECK(step(policy, AllAreGone{}) == "Disarm grace -> waiting");
  CHECK(step(policy, JobClosed{137}) == "Report hang, Drain -> draining");
}

TEST_CASE("a hang in a world that was broken before does not count") {
  Policy policy(1, {.signals = {SIGTERM}});
  policy.on(world_of(0, 0));
  policy.on(WorkersHang{{.workers = {{.rank = 10}}}});
  CHECK(step(policy, kBroken) == "-");
  CHECK(step(policy, AllAreGone{}) ==
        "Disarm grace, Report broken, Join -> joining");
}

namespace {

/// Returns whether `actions` report a final failure.
bool tells_final(const Actions& actions) {
  return std::get<HostFailed>(std::get<SendOutcome>(actions.at(0)).outcome)
      .is_final;
}

}  // namespace

TEST_CASE("no restart follows a final exit code, and the others hear of it") {
  Policy policy(1,
                {.max_restarts = 5,
                 .final_codes = {93, 7},
                 .grace_period = 7s,
                 .signals = {SIGTERM}});
  const auto [status, is_final] =
      GENERATE(std::pair(ExitStatus{.code = 93}, true),
               std::pair(ExitStatus{.code = 7}, true),
               std::pair(ExitStatus{.code = 8}, false),
               std::pair(ExitStatus{.signal = 7}, false));
  policy.on(world_of(0, 0));
  CHECK(tells_final(policy.on(WorkerExited{0, status})) == is_final);
  CHECK(step(policy, AllAreGone{}) ==
        (is_final ? "Disarm grace -> waiting"
                  : "Disarm grace, Report failure, Join -> joining"));
}
