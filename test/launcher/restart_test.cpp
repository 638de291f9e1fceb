#include <algorithm>
#include <csignal>

#include "launcher/base/error.h"
#include "launcher/options/options.h"
#include "launcher/options/restart_budget.h"
#include "launcher/options/restart_values.h"
#include "test/launcher/fake_job.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace launcher::test;

namespace {

RestartBudget::Time moment(std::chrono::milliseconds time) {
  return RestartBudget::Time(time);
}

/// A job of one worker whose first attempts fail immediately.
class FailingJob : public FakeJob {
 public:
  FailingJob(int failures, int max_restarts)
      : FakeJob(1, max_restarts), failures_(failures) {}

  void start(LaunchPlan plan) override {
    FakeJob::start(std::move(plan));
    exit(0, {.code = failures_-- > 0 ? 3 : 0});
  }

 private:
  int failures_;
};

}  // namespace

TEST_CASE("without a window all restarts of the job count") {
  RestartBudget budget(2, {});
  CHECK(budget.allows(0, moment(0s)));
  CHECK(budget.allows(1, moment(0s)));
  CHECK(!budget.allows(2, moment(1h)));
  CHECK(!budget.next_allowed(2, moment(1h)));
  CHECK(budget.spend(moment(0s)) == 0ms);
}

TEST_CASE("within a window only its restarts count") {
  RestartBudget budget(2, {.window = 10s});
  const auto allows = [&budget](std::chrono::milliseconds time) {
    return budget.allows(/*restarts=*/99, moment(time));
  };
  budget.spend(moment(0s));
  CHECK(allows(1s));
  budget.spend(moment(5s));
  CHECK(!allows(9999ms));
  CHECK(budget.next_allowed(99, moment(6s)) == moment(10s));
  CHECK(allows(10s));
  CHECK(budget.next_allowed(99, moment(11s)) == moment(11s));
  budget.spend(moment(10s));
  CHECK(!allows(14s));
  CHECK(allows(15s));
  CHECK(allows(100s));
  CHECK(!RestartBudget(0, {.window = 10s}).next_allowed(0, moment(0s)));
}

TEST_CASE("delays double up to a bound, and forget what left the window") {
  RestartBudget budget(
      9, {.window = 100s, .first_delay = 2s, .longest_delay = 9s});
  CHECK(budget.spend(moment(0s)) == 2s);
  CHECK(budget.spend(moment(1s)) == 4s);
  CHECK(budget.spend(moment(2s)) == 8s);
  CHECK(budget.spend(moment(3s)) == 9s);
  CHECK(budget.spend(moment(4s)) == 9s);
  CHECK(budget.spend(moment(103s)) == 4s);  // after the restart at 4 s
  CHECK(budget.spend(moment(300s)) == 2s);

  RestartBudget unbounded(1 << 30, {.first_delay = 1ms, .longest_delay = 24h});
  std::chrono::milliseconds last{0};
  for (int restart = 0; restart < 200; ++restart) {
    const auto delay = unbounded.spend(moment(0s));
    CHECK(delay >= last);
    last = delay;
  }
  CHECK(last == 24h);
  RestartBudget none(9, {.longest_delay = 9s});
  none.spend(moment(0s));
  CHECK(none.spend(moment(0s)) == 0s);
}

TEST_CASE("a job waits before its restarts") {
  FailingJob job(3, /*max_restarts=*/3);
  job.job.options.restart_rules = {.first_delay = 1s, .longest_delay = 3s};
  CHECK(job.run({}) == 0);
  CHECK(job.elapsed == 1s + 2s + 3s);
  CHECK(job.plans.size() == 4);
  CHECK_THAT(job.text,
             Contains("waiting 1 s before the next start\n") &&
                 Contains("waiting 3 s before the next start\n") &&
                 Contains("restart 3 of 3\n"));
}

TEST_CASE("rare failures never use up a budget within a time") {
  FailingJob job(6, /*max_restarts=*/1);
  job.job.options.restart_rules = {
      .window = 10s, .first_delay = 20s, .longest_delay = 60s};
  CHECK(job.run({}) == 0);
  CHECK(job.elapsed == 6 * 20s);
  CHECK_THAT(job.text, Contains("restart 6\n") && !Contains(" of 1"));
}

TEST_CASE("frequent failures use it up") {
  FailingJob job(6, /*max_restarts=*/2);
  job.job.options.restart_rules = {
      .window = 100s, .first_delay = 20s, .longest_delay = 60s};
  CHECK(job.run({}) == 3);
  CHECK(job.plans.size() == 3);
  CHECK(job.elapsed == 20s + 40s);
}

TEST_CASE("a job ends with a final code at once") {
  FailingJob job(6, /*max_restarts=*/5);
  job.job.options.final_codes = {3};
  CHECK(job.run({}) == 3);
  CHECK(job.plans.size() == 1);
  CHECK_THAT(job.text, Contains("no restart follows this exit code"));
}

TEST_CASE("a job is stopped when its time is up") {
  FakeJob job(2, /*max_restarts=*/5);
  job.job.options.time_limit = 60s;
  SECTION("with grace") {
    CHECK(job.run({}) == 124);
    CHECK(job.elapsed == 60s);
  }
  SECTION("and by force") {
    job.habits.dies_of_stop_signals = false;
    CHECK(job.run({}) == 124);
    CHECK(job.elapsed == 67s);
  }
  CHECK(job.plans.size() == 1);
  CHECK_THAT(job.text,
             Contains("the time of --time-limit is up: stopping 2 workers") &&
                 Contains("ddprun: stopped, as --time-limit is 60.0 s\n"));
}

TEST_CASE("the time limit counts pauses, too") {
  FailingJob job(9, /*max_restarts=*/9);
  job.job.options.time_limit = 25s;
  job.job.options.restart_rules = {.first_delay = 10s, .longest_delay = 10s};
  CHECK(job.run({}) == 124);
  CHECK(job.elapsed == 25s);
  CHECK(job.plans.size() == 3);
}

TEST_CASE("a clean stop is a success where that is asked for") {
  FakeJob job(1, /*max_restarts=*/0);
  job.habits.dies_of_stop_signals = false;
  job.job.options.stops_cleanly = GENERATE(true, false);
  const int code = job.run(
      {[&] { job.post(SignalReceived{SIGTERM}); }, [&] { job.exit(0, {}); }});
  CHECK(code == (job.job.options.stops_cleanly ? 0 : 128 + SIGTERM));
  CHECK_THAT(job.text, Contains("stopped by SIGTERM"));
}

TEST_CASE("options of restarts") {
  const auto parse = [](std::vector<std::string> arguments) {
    arguments.emplace_back("p");
    return std::get<LaunchOptions>(parse_options(std::move(arguments), {}));
  };
  const auto none = parse({});
  CHECK(!none.restart_rules.window);
  CHECK(none.restart_rules.first_delay == 0s);
  CHECK(!none.time_limit);
  CHECK(!none.stops_cleanly);
  const auto options = parse({"--restart-delay=0.5:8",
                              "--restart-window=3600",
                              "--final-codes=93,7",
                              "--time-limit=1.5",
                              "--clean-stop"});
  CHECK(options.restart_rules.first_delay == 500ms);
  CHECK(options.restart_rules.longest_delay == 8s);
  CHECK(options.restart_rules.window == 1h);
  CHECK(options.final_codes == std::vector<int>{93, 7});
  CHECK(options.time_limit == 1500ms);
  CHECK(options.stops_cleanly);
  CHECK(parse_restart_delays("2").longest == 5min);
  CHECK(parse_restart_delays("1000").longest == 1000s);
  for (const char* wrong : {"--restart-delay=5:2",
                            "--restart-delay=x",
                            "--restart-delay=1:",
                            "--restart-window=0",
                            "--final-codes=0",
                            "--final-codes=256",
                            "--final-codes=",
                            "--time-limit=0",
                            "--time-limit=-1"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH(
        parse({wrong}),
        Contains(std::string(wrong).substr(0, std::string(wrong).find('='))) &&
            Contains("expected") && Contains("but got"));
  }
}
