#include "launcher/plan/plan.h"

#include <algorithm>
#include <csignal>

#include "launcher/machine/execution.h"
#include "test/support/catch.h"

using Catch::Contains;
using launcher::Environment;
using launcher::Execution;
using launcher::InheritedVariables;
using launcher::Job;
using launcher::WorkerSpec;
using launcher::World;

namespace {

Job job_of(int workers) {
  Job job;
  job.options.signals = {SIGTERM, SIGINT};
  job.program = {"/bin/train", {"train", "--out=${local_rank}.pt", "$x $$"}};
  job.worker_count = workers;
  job.run_id = "job7";
  return job;
}

launcher::Attempt attempt_of(launcher::World world) {
  world.master = {"host0", 29500};
  return {world, attempt_directory("/logs", world)};
}

/// Returns the attempt of a single host before any restart.
launcher::Attempt attempt_of_one_host(int workers) {
  return attempt_of({.world_size = workers});
}

}  // namespace

TEST_CASE("every worker gets torchrun's environment") {
  Job job = job_of(3);
  job.options.max_restarts = 4;
  job.options.role = "trainer";
  // The first host has four workers, this one has three. Generation 5 began
  // after two failures.
  const auto plan = make_plan(job,
                              attempt_of({.generation = 5,
                                          .restarts = 2,
                                          .host_rank = 1,
                                          .host_count = 2,
                                          .first_rank = 4,
                                          .world_size = 7}));
  REQUIRE(plan.workers.size() == 3);
  for (int local_rank = 0; local_rank < 3; ++local_rank) {
    const auto& worker = plan.workers[local_rank];
    const std::string rank = std::to_string(4 + local_rank);
    CHECK(worker.rank == 4 + local_rank);
    const Environment expected = {
        {"RANK", rank},
        {"LOCAL_RANK", std::to_string(local_rank)},
        {"WORLD_SIZE", "7"},
        {"LOCAL_WORLD_SIZE", "3"},
        {"GROUP_RANK", "1"},
        {"GROUP_WORLD_SIZE", "2"},
        {"ROLE_NAME", "trainer"},
        {"ROLE_RANK", rank},
        {"ROLE_WORLD_SIZE", "7"},
        {"MASTER_ADDR", "host0"},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_RESTART_COUNT", "2"},
        {"TORCHELASTIC_MAX_RESTARTS", "4"},
        {"TORCHELASTIC_RUN_ID", "job7"},
        {"TORCHELASTIC_USE_AGENT_STORE", "False"},
        {"TORCHELASTIC_ERROR_FILE",
         "/logs/attempt_5/" + std::to_string(local_rank) + "/error.json"},
        {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT"},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
        {"OMP_NUM_THREADS", "1"},
    };
    CHECK(worker.environment == expected);
  }
}

TEST_CASE("ranks in a role are the world's, where hosts have several roles") {
  const auto plan = make_plan(job_of(2),
                              attempt_of({.first_rank = 4,
                                          .world_size = 7,
                                          .role = launcher::RoleRanks{1, 3}}));
  REQUIRE(plan.workers.size() == 2);
  for (int local_rank = 0; local_rank < 2; ++local_rank) {
    const Environment& variables = plan.workers[local_rank].environment;
    CHECK(variables.at("RANK") == std::to_string(4 + local_rank));
    CHECK(variables.at("ROLE_RANK") == std::to_string(1 + local_rank));
    CHECK(variables.at("ROLE_WORLD_SIZE") == "3");
  }
}

TEST_CASE("each worker has files of its rank in the job's directory") {
  Job job = job_of(2);
  launcher::Attempt attempt =
      attempt_of({.host_count = 2, .first_rank = 4, .world_size = 6});
  CHECK(
      make_plan(job, attempt).workers[1].environment.count("DDPRUN_JOB_DIR") ==
      0);
  CHECK(make_plan(job, attempt).workers[1].progress_file.empty());
  attempt.job_directory = "/tmp/p";
  job.options.hang_timeout = std::chrono::seconds(3);
  const auto plan = make_plan(job, attempt);
  CHECK(plan.hang_timeout == std::chrono::seconds(3));
  CHECK(plan.has_other_hosts);
  CHECK(plan.workers[1].progress_file == "/tmp/p/progress_5");
  CHECK(plan.workers[1].stop_file == "/tmp/p/stop_5");
  CHECK(plan.workers[1].environment.at("DDPRUN_JOB_DIR") == "/tmp/p");
}

TEST_CASE("without a folder there is no error file") {
  const Job job = job_of(1);
  const World world{.master = {"host0", 29500}};
  const auto plan = make_plan(job, {world, attempt_directory("", world)});
  const WorkerSpec& worker = plan.workers.front();
  CHECK(worker.directory.empty());
  CHECK(worker.error_file.empty());
  CHECK(worker.environment.at("TORCHELASTIC_ERROR_FILE").empty());
}

TEST_CASE("variables of the caller's environment are kept") {
  Job job = job_of(2);
  job.environment = {{"OMP_NUM_THREADS", "8"},
                     {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},
                     {"RANK", "77"}};
  const auto worker = make_plan(job, attempt_of_one_host(2)).workers[1];
  CHECK(worker.environment.count("OMP_NUM_THREADS") == 0);
  CHECK(worker.environment.count("TORCH_NCCL_ASYNC_ERROR_HANDLING") == 0);
  CHECK(worker.environment.count("CUDA_VISIBLE_DEVICES") == 0);
  const InheritedVariables inherited(job.environment);
  const Execution execution("x", {"x"}, inherited, worker.environment, {});
  std::vector<std::string> texts;
  for (char* const* text = execution.environment(); *text != nullptr; ++text) {
    texts.emplace_back(*text);
  }
  CHECK(texts.size() == worker.environment.size() + 2);
  CHECK(std::count(texts.begin(), texts.end(), "RANK=1") == 1);
  CHECK(std::count(texts.begin(), texts.end(), "RANK=77") == 0);
  CHECK(std::count(texts.begin(), texts.end(), "OMP_NUM_THREADS=8") == 1);
}

TEST_CASE("a single worker keeps all threads of the host") {
  const auto plan = make_plan(job_of(1), attempt_of_one_host(1));
  CHECK(plan.workers[0].environment.count("OMP_NUM_THREADS") == 0);
}

TEST_CASE("GPUs reach the workers") {
  Job job = job_of(2);
  job.gpus = "0,2";
  const auto plan = make_plan(
      job,
      attempt_of(
          {.restarts = 7, .host_rank = 5, .first_rank = 2, .world_size = 4}));
  CHECK(plan.workers[1].environment.at("CUDA_VISIBLE_DEVICES") == "0,2");
}

TEST_CASE("a virtual local rank is 0, and the only GPU the worker's own") {
  Job job = job_of(2);
  job.gpus = "5,7,9";
  job.gpu_of_worker = {"5", "7"};
  const auto plan = make_plan(job, attempt_of_one_host(2));
  for (int local_rank : {0, 1}) {
    const WorkerSpec& worker = plan.workers[local_rank];
    const std::string number = std::to_string(local_rank);
    CHECK(worker.local_rank == local_rank);
    CHECK(worker.environment.at("LOCAL_RANK") == "0");
    CHECK(worker.environment.at("RANK") == number);
    CHECK(worker.environment.at("LOCAL_WORLD_SIZE") == "2");
    CHECK(worker.environment.at("CUDA_VISIBLE_DEVICES") ==
          job.gpu_of_worker[local_rank]);
    CHECK(worker.argv[1] == "--out=" + number + ".pt");
    CHECK(worker.directory == "/logs/attempt_0/" + number);
  }
}

TEST_CASE("arguments are the user's own, but for the local rank") {
  const auto plan = make_plan(job_of(2), attempt_of_one_host(2));
  CHECK(plan.path == "/bin/train");
  CHECK(plan.workers[1].argv ==
        std::vector<std::string>{"train", "--out=1.pt", "$x $"});
}

TEST_CASE("redirect hides, tee shows and stores, the filter hides") {
  Job job = job_of(3);
  job.options.redirects = launcher::parse_stream_map("0:1");
  job.options.tee = launcher::parse_stream_map("1:2");
  job.options.shown_ranks = {{0, 1}};
  const auto plan = make_plan(job, attempt_of_one_host(3));
  const auto& first = plan.workers[0];
  CHECK(first.to_file.out);
  CHECK(!first.to_console.out);
  CHECK(!first.to_file.err);
  CHECK(first.to_console.err);
  const auto& second = plan.workers[1];
  CHECK(second.to_file.err);
  CHECK(second.to_console.err);
  CHECK(!second.to_file.out);
  CHECK(second.to_console.out);
  CHECK(!plan.workers[2].to_console.out);
  CHECK(!plan.workers[2].to_console.err);
  // One stream of a worker is hidden, the other one is shown and stored.
  job.options.redirects = launcher::parse_stream_map("0:2,1:0,2:3");
  job.options.tee = launcher::parse_stream_map("0:1,1:2,2:3");
  job.options.shown_ranks.reset();
  const auto mixed = make_plan(job, attempt_of_one_host(3));
  const auto& both = mixed.workers[0];
  CHECK(both.to_file.out);
  CHECK(both.to_console.out);
  CHECK(both.to_file.err);
  CHECK(!both.to_console.err);
  CHECK(!mixed.workers[1].to_file.out);
  CHECK(mixed.workers[1].to_file.err);
  CHECK(mixed.workers[1].to_console.out);
  // --redirects 3 --tee 3: --tee adds the console.
  CHECK(mixed.workers[2].to_file.out);
  CHECK(mixed.workers[2].to_console.out);
  CHECK(mixed.workers[2].to_console.err);
}

TEST_CASE("filters choose among the lines that --tee shows") {
  Job job = job_of(3);
  job.options.tee = launcher::parse_stream_map("0:3,1:1");
  job.options.shown_ranks = {{0, 2}};
  job.options.out_filters = {"loss"};
  job.options.err_filters = {"error", "warning"};
  const auto plan = make_plan(job, attempt_of_one_host(3));
  CHECK(plan.workers[0].to_filtered.out);
  CHECK(plan.workers[0].to_filtered.err);
  CHECK(!plan.workers[1].to_filtered.out);  // not shown
  CHECK(!plan.workers[2].to_filtered.err);  // no --tee
  CHECK(plan.filtered_out.path == "/logs/attempt_0/filtered_stdout.log");
  CHECK(plan.filtered_out.texts == std::vector<std::string>{"loss"});
  CHECK(plan.filtered_err.path == "/logs/attempt_0/filtered_stderr.log");
  CHECK(plan.filtered_err.texts ==
        std::vector<std::string>{"error", "warning"});
  job.options.tee = launcher::parse_stream_map("0:1");
  CHECK(make_plan(job, attempt_of_one_host(3)).filtered_err.path.empty());
  const World world;
  CHECK(make_plan(job, {world, ""}).filtered_out.path.empty());
}

TEST_CASE("the prefix is the rank, or torchrun's template") {
  Job job = job_of(1);
  const auto attempt = attempt_of({.first_rank = 12, .world_size = 13});
  const auto prefix = [&] { return make_plan(job, attempt).workers[0].prefix; };
  CHECK(prefix() == "[12] ");
  std::string& variable =
      job.environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"];
  CHECK(prefix() == "[12] ");  // empty: as if not set, as in torchrun
  variable = "[${role_name}-${local_rank}:${rank}]: ";
  CHECK(prefix() == "[default-0:12]: ");
  job.options.role = "${rank}";
  variable = "$role_name/${world}$$ ";
  CHECK(prefix() == "${rank}/${world}$ ");
}

TEST_CASE("a described plan says what a worker does not inherit") {
  Job job = job_of(2);
  job.withheld = {"DDPRUN_JOB_DIR", "DDPRUN_TOKEN"};
  const auto text = describe(make_plan(job, attempt_of_one_host(2)));
  const std::string command =
      "env -u DDPRUN_JOB_DIR -u DDPRUN_TOKEN \\\n  GROUP_RANK=0";
  CHECK_THAT(text,
             Contains("# rank 0, local rank 0\n" + command) &&
                 Contains("# rank 1, local rank 1\n" + command));
}

TEST_CASE("a described plan is commands for a shell") {
  Job job = job_of(1);
  job.program.argv = {"./train", "a b", "it's", "", "--lr=0.1"};
  const auto text = describe(make_plan(job, attempt_of_one_host(1)));
  CHECK(text == R"(# rank 0, local rank 0
env \
  GROUP_RANK=0 \
  GROUP_WORLD_SIZE=1 \
  LOCAL_RANK=0 \
  LOCAL_WORLD_SIZE=1 \
  MASTER_ADDR=host0 \
  MASTER_PORT=29500 \
  RANK=0 \
  ROLE_NAME=default \
  ROLE_RANK=0 \
  ROLE_WORLD_SIZE=1 \
  TORCHELASTIC_ERROR_FILE=/logs/attempt_0/0/error.json \
  TORCHELASTIC_MAX_RESTARTS=0 \
  TORCHELASTIC_RESTART_COUNT=0 \
  TORCHELASTIC_RUN_ID=job7 \
  TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT \
  TORCHELASTIC_USE_AGENT_STORE=False \
  TORCH_NCCL_ASYNC_ERROR_HANDLING=1 \
  WORLD_SIZE=1 \
  ./train 'a b' 'it'\''s' '' --lr=0.1
)");
}
