#include "ddp/worker_env.h"

#include "ddp/base/cluster/cluster_task.h"
#include "test/launcher/cluster/cluster_environments.h"
#include "test/support/catch.h"

using Catch::Contains;
using ddp::WorkerEnv;
using ddp::detail::port_of_job;
using namespace launcher::test;

namespace {

WorkerEnv worker_in(const Variables& variables) {
  return WorkerEnv::read(reader_of(variables));
}

}  // namespace

TEST_CASE("a program without a launcher is a rank of srun or mpirun",
          "[cluster][worker_env]") {
  for (int rank = 0; rank < 5; ++rank) {
    const auto env = worker_in(srun_five_tasks(rank));
    CHECK(env.launched);
    CHECK(env.rank == rank);
    CHECK(env.world_size == 5);
    CHECK(env.local_rank == rank % 2);
    CHECK(env.local_world_size == (rank == 4 ? 1 : 2));
    CHECK(env.host_count == 3);
    CHECK(env.master_addr == "node1");
    CHECK(env.master_port == port_of_job("1234.0"));
    CHECK_FALSE(env.use_agent_store);
  }
  const auto mpi = worker_in(launcher::test::open_mpi_task(2, 4, 4));
  CHECK(mpi.rank == 2);
  CHECK(mpi.world_size == 4);
  CHECK(mpi.master_addr == "127.0.0.1");
  // One task, a batch script: no rendezvous is needed.
  for (const Variables& alone : {launcher::test::open_mpi_task(0, 1, 1),
                                 launcher::test::hydra_task(0, 1, 1),
                                 launcher::test::pals_task(0, 1, 1),
                                 launcher::test::flux_task(0, 1, 1),
                                 sbatch_script(),
                                 interactive_step()}) {
    CHECK_FALSE(worker_in(alone).launched);
    CHECK(worker_in(alone).world_size == 1);
  }
}

TEST_CASE("one of several processes without a rank is an error",
          "[cluster][worker_env]") {
  for (const Variables& variables :
       {Variables{{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}},
        Variables{{"PMIX_RANK", "1"}},
        indexed_pod(1)}) {
    CHECK_THROWS_WITH(worker_in(variables),
                      Contains("a scheduler has started it with others") &&
                          Contains("RANK=0 and WORLD_SIZE=1"));
    CHECK(worker_in(with(variables, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}))
              .world_size == 1);
  }
}

TEST_CASE("a launcher's variables beat the scheduler's",
          "[cluster][worker_env]") {
  const auto env = worker_in(with(srun_five_tasks(3),
                                  {{"RANK", "9"},
                                   {"WORLD_SIZE", "10"},
                                   {"LOCAL_RANK", "1"},
                                   {"LOCAL_WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "h"},
                                   {"MASTER_PORT", "29500"}}));
  CHECK(env.rank == 9);
  CHECK(env.world_size == 10);
  CHECK(env.local_rank == 1);
  CHECK(env.master_addr == "h");
  CHECK(env.master_port == 29500);
}

TEST_CASE("what is set beside a scheduler's variables",
          "[cluster][worker_env]") {
  const auto master =
      worker_in(with(launcher::test::hydra_task(1, 2, 1),
                     {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "4000"}}));
  CHECK(master.rank == 1);
  CHECK(master.master_addr == "h");
  CHECK(master.master_port == 4000);
  CHECK(worker_in(with(srun_five_tasks(1), {{"WORLD_SIZE", "5"}})).rank == 1);
  // Each task sees only its own GPU, as with srun --gpus-per-task=1.
  const auto own =
      worker_in(with(srun_five_tasks(1), {{"CUDA_VISIBLE_DEVICES", "3"}}));
  CHECK(own.local_rank == 0);
  CHECK(own.local_world_size == 2);
  for (const char* several_or_none : {"0,1", "NoDevFiles"}) {
    CHECK(worker_in(with(srun_five_tasks(1),
                         {{"CUDA_VISIBLE_DEVICES", several_or_none}}))
              .local_rank == 1);
  }
  CHECK_THROWS_WITH(worker_in(with(srun_five_tasks(1), {{"WORLD_SIZE", "4"}})),
                    Contains("tasks that Slurm has started, 5, but got 4"));
  CHECK_THROWS_WITH(worker_in(launcher::test::hydra_task(1, 2, 1)),
                    Contains("which MPICH does not tell") &&
                        Contains("-genv MASTER_ADDR HOST") &&
                        Contains("ddprun"));
}

TEST_CASE("a pod of Kubeflow is a rank with all of its GPUs",
          "[cluster][worker_env]") {
  for (int rank = 0; rank < 3; ++rank) {
    const auto env = worker_in(kubeflow_pod(rank, 3));
    CHECK(env.launched);
    CHECK(env.rank == rank);
    CHECK(env.world_size == 3);
    CHECK(env.local_rank == 0);
    CHECK(env.local_world_size == 1);
    CHECK(env.host_count == 3);
    CHECK(env.master_addr == "job-master-0");
    CHECK(env.master_port == 23456);
  }
  CHECK_THROWS_WITH(worker_in(kubeflow_pod(3, 3)), Contains("task 3 of 3"));
}

TEST_CASE("ranks set by hand may be on several hosts", "[worker_env]") {
  using Row = std::pair<Variables, int>;
  const auto row = GENERATE(values<Row>(
      {{{{"MASTER_ADDR", "10.0.0.1"}}, 4},
       {{{"MASTER_ADDR", "10.0.0.1"}, {"LOCAL_WORLD_SIZE", "2"}}, 2},
       {{{"MASTER_ADDR", "10.0.0.1"}, {"LOCAL_WORLD_SIZE", "3"}}, 2},
       {{{"MASTER_ADDR", "10.0.0.1"}, {"LOCAL_WORLD_SIZE", "4"}}, 1},
       {{{"MASTER_ADDR", "10.0.0.1"}, {"GROUP_WORLD_SIZE", "1"}}, 1},
       {{{"MASTER_ADDR", "127.0.0.1"}, {"GROUP_WORLD_SIZE", "2"}}, 2},
       {{{"MASTER_ADDR", "127.0.0.2"}}, 1},
       {{{"MASTER_ADDR", "localhost"}}, 1},
       {{{"MASTER_ADDR", "::1"}}, 1}}));
  const auto env = worker_in(
      with({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "29500"}},
           row.first));
  CAPTURE(env.master_addr);
  CHECK(env.host_count == row.second);
}
