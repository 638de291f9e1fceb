#include <algorithm>
#include <memory>

#include "ddp/base/cluster/cluster_task.h"
#include "test/launcher/cluster/cluster_environments.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher::test;

namespace {

/// Returns a task of a job on two hosts, both of which are this machine.
Variables srun_task_here(int rank) {
  return with(srun_task_a_host(rank, 2),
              {{"SLURM_STEP_NODELIST", "127.0.0.[1-2]"}});
}

}  // namespace

TEST_CASE("two hosts of srun: ranks without a word") {
  const Ddprun::Arguments arguments{"--nproc-per-node=2",
                                    resource("print_env"),
                                    "RANK",
                                    "WORLD_SIZE",
                                    "GROUP_RANK",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "TORCHELASTIC_RUN_ID"};
  const auto start = [&](int host) {
    return std::make_unique<Ddprun>(
        arguments, with(srun_task_here(host), {{"LOGLEVEL", "INFO"}}));
  };
  const std::unique_ptr<Ddprun> hosts[] = {start(0), start(1)};
  for (int host = 0; host < 2; ++host) {
    const auto result = hosts[host]->finish();
    CHECK(result.code() == 0);
    CHECK_THAT(result.err,
               Contains("ddprun: Slurm says: host " + std::to_string(host) +
                        " of 2, rank 0 on 127.0.0.1"));
    for (int rank = 2 * host; rank < 2 * host + 2; ++rank) {
      const std::string text = std::to_string(rank);
      CHECK(result.lines_of("[" + text + "] ") ==
            std::vector<std::string>{
                "RANK=" + text,
                "WORLD_SIZE=4",
                "GROUP_RANK=" + std::to_string(host),
                "MASTER_ADDR=127.0.0.1",
                "MASTER_PORT=" +
                    std::to_string(ddp::detail::port_of_job("1234.0")),
                "TORCHELASTIC_RUN_ID=1234.0"});
    }
  }
}

TEST_CASE("a scheduler's hosts are not this job's: nothing is said of them") {
  for (const auto& variables :
       {with(srun_task_here(1), {{"PET_STANDALONE", "1"}}),
        sbatch_script(),
        interactive_step()}) {
    const auto result =
        run_ddprun({resource("print_env"), "RANK", "WORLD_SIZE"},
                   with(variables, {{"LOGLEVEL", "INFO"}}));
    CHECK(result.code() == 0);
    CHECK(result.lines_of("[0] ") ==
          std::vector<std::string>{"RANK=0", "WORLD_SIZE=1"});
    CHECK(result.err.find("says") == std::string::npos);
  }
}

TEST_CASE("a ddprun for each task is refused before anything starts") {
  const auto result = run_ddprun({"echo", "x"}, srun_five_tasks(3));
  CHECK(result.code() == 2);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, Contains("expected one ddprun a host"));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
}
