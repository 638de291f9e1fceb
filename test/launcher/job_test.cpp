#include "launcher/plan/job.h"

#include "launcher/base/error.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;

namespace {

LaunchOptions shell() {
  LaunchOptions options;
  options.program = {"/bin/sh"};
  options.program_kind = ProgramKind::executable;
  return options;
}

}  // namespace

TEST_CASE("a job is whole: run id, program, devices that exist") {
  LaunchOptions options = shell();
  CHECK(make_job(options, HostInfo{}, {}, "unique").run_id == "unique");
  options.rendezvous = UncoordinatedConfig{.host_count = 2};
  CHECK(make_job(options, HostInfo{}, {}, "unique").run_id == "none");
  CHECK_THROWS_WITH(
      make_job(options,
               HostInfo{.name = "h", .cpu_count = 1, .gpu_count = 2},
               {{"CUDA_VISIBLE_DEVICES", "0,2"}},
               "unique"),
      Contains("names GPU 2, but this host has 2"));
  CHECK(make_job(options, HostInfo{.cpu_count = 6}, {}, "unique").cpu_count ==
        6);
  options.run_id = "mine";
  CHECK(make_job(options, HostInfo{}, {}, "unique").run_id == "mine");
}

TEST_CASE("a job in a worker of another job has no files of that") {
  const Environment outer{{"DDPRUN_JOB_DIR", "/outer"},
                          {"DDPRUN_TOKEN", "all hosts know it"},
                          {"TORCHELASTIC_ERROR_FILE", "/outer/error.json"},
                          {"TORCHELASTIC_RUN_ID", "outer"}};
  const Job job = make_job(shell(), HostInfo{}, outer, "unique");
  CHECK(job.withheld ==
        std::vector<std::string>{"DDPRUN_JOB_DIR", "DDPRUN_TOKEN"});
  CHECK(job.environment ==
        Environment{{"TORCHELASTIC_ERROR_FILE", "/outer/error.json"},
                    {"TORCHELASTIC_RUN_ID", "outer"}});
}

TEST_CASE(
    "a host whose loopback is down is warned of, if all ranks are there") {
  LaunchOptions options = shell();
  const HostInfo without{.has_loopback = false};
  const auto warnings = make_job(options, without, {}, "unique").warnings;
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings.front(), Contains("127.0.0.1") && Contains("ip link"));
  options.rendezvous = UncoordinatedConfig{.host_count = 2};
  CHECK(make_job(options, without, {}, "unique").warnings.empty());
}

TEST_CASE("torchrun's file timer is accepted, with a warning") {
  const auto warnings_of = [](const std::string& value) {
    return make_job(shell(),
                    HostInfo{},
                    {{"TORCHELASTIC_ENABLE_FILE_TIMER", value}},
                    "unique")
        .warnings;
  };
  CHECK(warnings_of("0").empty());
  REQUIRE(warnings_of("1").size() == 1);
  CHECK_THAT(warnings_of("1").front(),
             Contains("TORCHELASTIC_ENABLE_FILE_TIMER=1 has no effect") &&
                 Contains("--hang-timeout"));
}

TEST_CASE("what the command line had to say comes with the job") {
  LaunchOptions options = shell();
  options.warnings = {"a", "b"};
  CHECK(make_job(options, HostInfo{}, {}, "unique").warnings ==
        std::vector<std::string>{"a", "b"});
}

TEST_CASE("a filter without --tee has no effect, and one line says so") {
  LaunchOptions options = shell();
  options.out_filters = {"loss"};
  const auto warnings = make_job(options, HostInfo{}, {}, "unique").warnings;
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings.front(), Contains("no effect without --tee"));
  options.tee = parse_stream_map("3");
  CHECK(make_job(options, HostInfo{}, {}, "unique").warnings.empty());
}

TEST_CASE("workers share CPUs although the machine has more: one line") {
  LaunchOptions options = shell();
  options.worker_count = WorkerCount{.number = 3};
  const auto warnings = [&options](int usable, int all) {
    const HostInfo host{.cpu_count = usable, .machine_cpus = all};
    return make_job(options, host, {}, "unique").warnings;
  };
  CHECK(warnings(3, 4).empty());
  CHECK(warnings(2, 2).empty());
  REQUIRE(warnings(2, 4).size() == 1);
  CHECK_THAT(warnings(2, 4).front(),
             Contains("3 workers may use 2 of this machine's 4 CPUs") &&
                 Contains("--cpus-per-task"));
}

TEST_CASE("nobody reads from the terminal of a shell that is in front") {
  LaunchOptions options = shell();
  HostInfo host;
  CHECK(make_job(options, host, {}, "unique").has_stdin);
  host.is_in_background = true;
  CHECK(!make_job(options, host, {}, "unique").has_stdin);
}

TEST_CASE("hosts that do not meet: no restart, and one line that says so") {
  LaunchOptions options = shell();
  options.max_restarts = 3;
  const Job one = make_job(options, HostInfo{}, {}, "unique");
  CHECK(one.options.max_restarts == 3);
  CHECK(one.warnings.empty());
  options.rendezvous = UncoordinatedConfig{.host_count = 2};
  const Job several = make_job(options, HostInfo{}, {}, "unique");
  CHECK(several.options.max_restarts == 0);
  REQUIRE(several.warnings.size() == 1);
  CHECK_THAT(several.warnings.front(),
             Contains("--max-restarts") && Contains("meeting_port=0"));
  options.max_restarts = 0;
  CHECK(make_job(options, HostInfo{}, {}, "unique").warnings.empty());
}

TEST_CASE(
    "hosts that meet agree on restarts, and know a secret or are warned") {
  LaunchOptions options = shell();
  options.max_restarts = 3;
  options.role = "trainer";
  CoordinatedConfig hosts;
  hosts.terms.most_hosts = 2;
  options.rendezvous = hosts;
  const Job open = make_job(options, HostInfo{}, {}, "unique");
  CHECK(open.options.max_restarts == 3);
  const CoordinatedConfig& config =
      std::get<CoordinatedConfig>(open.options.rendezvous);
  CHECK(config.terms.max_restarts == 3);
  CHECK(config.terms.run_id == "none");
  CHECK(config.role == "trainer");
  REQUIRE(open.warnings.size() == 1);
  CHECK_THAT(open.warnings.front(), Contains("DDPRUN_TOKEN"));
  const Job closed =
      make_job(options, HostInfo{}, {{"DDPRUN_TOKEN", "secret"}}, "unique");
  CHECK(std::get<CoordinatedConfig>(closed.options.rendezvous).token ==
        "secret");
  CHECK(closed.warnings.empty());
  // The static host that listens prints the warning for all hosts.
  CoordinatedConfig fixed;
  fixed.store = Endpoint{"node0", 29500};
  fixed.wanted_rank = 1;
  options.rendezvous = fixed;
  CHECK(make_job(options, HostInfo{}, {}, "unique").warnings.empty());
  fixed.wanted_rank = 0;
  options.rendezvous = fixed;
  CHECK(make_job(options, HostInfo{}, {}, "unique").warnings.size() == 1);
}

TEST_CASE("ranks that no int counts are refused") {
  LaunchOptions options = shell();
  options.worker_count = {WorkerCount::Kind::number, 1 << 20};
  options.rendezvous = UncoordinatedConfig{.host_count = 16};
  CHECK_NOTHROW(make_job(options, HostInfo{}, {}, "unique"));
  options.rendezvous = UncoordinatedConfig{.host_count = 1 << 20};
  CHECK_THROWS_WITH(make_job(options, HostInfo{}, {}, "unique"),
                    Contains("--nproc-per-node: expected at most 16777216 "
                             "ranks in all, but got 1048576 on each of "
                             "1048576 hosts"));
}
