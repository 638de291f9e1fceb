#include "launcher/base/error.h"
#include "launcher/options/options.h"
#include "test/launcher/fake_job.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace launcher::test;

namespace {

/// A job of one worker; the first attempts fail immediately.
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

TEST_CASE("a job ends with a final code at once") {
  FailingJob job(6, /*max_restarts=*/5);
  job.job.options.final_codes = {3};
  CHECK(job.run({}) == 3);
  CHECK(job.plans.size() == 1);
  CHECK_THAT(job.text, Contains("no restart follows this exit code"));
}

TEST_CASE("options of restarts") {
  const auto parse = [](std::vector<std::string> arguments) {
    arguments.emplace_back("p");
    return std::get<LaunchOptions>(parse_options(std::move(arguments), {}));
  };
  const auto options = parse({"--final-codes=93,7"});
  CHECK(options.final_codes == std::vector<int>{93, 7});
  for (const char* wrong :
       {"--final-codes=0", "--final-codes=256", "--final-codes="}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH(
        parse({wrong}),
        Contains(std::string(wrong).substr(0, std::string(wrong).find('='))) &&
            Contains("expected") && Contains("but got"));
  }
}
