#include "ddp/base/cluster/cluster_task.h"

#include <random>
#include <set>
#include <stdexcept>

#include "test/launcher/cluster/cluster_environments.h"
#include "test/support/catch.h"

using Catch::Contains;
using ddp::detail::ClusterTask;
using ddp::detail::port_of_job;
using namespace launcher::test;

namespace {

std::optional<ClusterTask> task_in(const Variables& variables) {
  return ddp::detail::read_cluster_task(reader_of(variables));
}

}  // namespace

TEST_CASE("no scheduler, no task", "[cluster]") {
  CHECK(!task_in({}));
  CHECK(!task_in({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}}));
  CHECK(!task_in(sbatch_script()));
  CHECK(!task_in(salloc_shell()));
  CHECK(!task_in(interactive_step()));
  // A batch script in a step with a number of its own.
  CHECK(!task_in(with(sbatch_script(), {{"SLURM_STEP_ID", "4294967291"}})));
  CHECK(!task_in(with(sbatch_script(), {{"SLURM_STEP_ID", ""}})));
  CHECK(!task_in(with(sbatch_script(), {{"SLURM_STEP_ID", "batch"}})));
}

TEST_CASE("Slurm: a step's tasks, not the job's", "[cluster]") {
  const int hosts = GENERATE(2, 3, 7);
  std::set<int> ports;
  for (int rank = 0; rank < hosts; ++rank) {
    const auto task = task_in(srun_task_a_host(rank, hosts));
    REQUIRE(task);
    CHECK(task->scheduler == "Slurm");
    CHECK(task->job_id == "1234.0");
    CHECK(task->rank == rank);
    CHECK(task->count == hosts);
    CHECK(task->local_rank == 0);
    CHECK(task->local_count == 1);
    CHECK(task->host_rank == rank);
    CHECK(task->host_count == hosts);
    CHECK(task->master_addr == "node1");
    ports.insert(task->master_port);
  }
  CHECK(ports.size() == 1);
}

TEST_CASE("Slurm: hosts with different numbers of tasks", "[cluster]") {
  for (int rank = 0; rank < 5; ++rank) {
    const auto task = task_in(srun_five_tasks(rank));
    REQUIRE(task);
    CHECK(task->rank == rank);
    CHECK(task->count == 5);
    CHECK(task->local_rank == rank % 2);
    CHECK(task->local_count == (rank == 4 ? 1 : 2));
    CHECK(task->host_rank == rank / 2);
    CHECK(task->host_count == 3);
  }
}

TEST_CASE("Slurm: one host meets on loopback, one task with nobody",
          "[cluster]") {
  const auto variables = with(srun_task_a_host(0, 1),
                              {{"SLURM_PROCID", "2"},
                               {"SLURM_LOCALID", "2"},
                               {"SLURM_STEP_NUM_TASKS", "3"},
                               {"SLURM_STEP_NODELIST", "node1"},
                               {"SLURM_STEP_TASKS_PER_NODE", "3"}});
  const auto task = task_in(variables);
  REQUIRE(task);
  CHECK(task->master_addr == "127.0.0.1");
  CHECK(task->local_rank == 2);
  const auto alone = task_in({{"SLURM_STEP_ID", "3"},
                              {"SLURM_PROCID", "0"},
                              {"SLURM_STEP_NUM_TASKS", "1"}});
  REQUIRE(alone);
  CHECK(alone->count == 1);
}

TEST_CASE("mpirun comes before the srun that has started its daemons",
          "[cluster]") {
  const auto variables = with(srun_task_a_host(1, 2), open_mpi_task(5, 8, 4));
  const auto task = task_in(variables);
  REQUIRE(task);
  CHECK(task->scheduler == "Open MPI");
  CHECK(task->rank == 5);
  // The first host of the allocation, which differs from mpirun's host.
  CHECK(task->master_addr == "node0");
  CHECK(task_in(with(srun_task_a_host(1, 2), hydra_task(1, 8, 4)))->scheduler ==
        "MPICH");
  // A task of Slurm's own PMI is a Slurm task.
  CHECK(task_in(with(srun_task_a_host(1, 2),
                     {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}))
            ->scheduler == "Slurm");
}

TEST_CASE("MPI, PALS and Flux: ranks, and where they can be told, hosts",
          "[cluster]") {
  const auto make = GENERATE(launcher::test::open_mpi_task,
                             launcher::test::hydra_task,
                             launcher::test::pals_task,
                             launcher::test::flux_task);
  const bool is_open_mpi = make == launcher::test::open_mpi_task;
  const auto one_host = task_in(make(2, 4, 4));
  REQUIRE(one_host);
  CHECK(one_host->rank == 2);
  CHECK(one_host->count == 4);
  CHECK(one_host->local_rank == 2);
  CHECK(one_host->local_count == 4);
  CHECK(one_host->host_rank == 0);
  CHECK(one_host->host_count == 1);
  CHECK(one_host->master_addr == "127.0.0.1");
  const auto one_per_host_command = task_in(make(2, 3, 1));
  REQUIRE(one_per_host_command);
  CHECK(one_per_host_command->host_rank == 2);
  CHECK(one_per_host_command->host_count == 3);
  CHECK(one_per_host_command->master_addr == (is_open_mpi ? "172.17.0.2" : ""));
  CHECK(task_in(make(5, 8, 4))->host_rank == 1);
  CHECK(task_in(make(5, 8, 4))->host_count == 2);
  CHECK(one_host->master_port == task_in(make(0, 4, 4))->master_port);
}

TEST_CASE("PALS and Flux by their names", "[cluster]") {
  const auto pals = task_in(launcher::test::pals_task(5, 8, 4));
  REQUIRE(pals);
  CHECK(pals->scheduler == "PALS");
  CHECK_THAT(pals->master_hint, Contains("PBS_NODEFILE"));
  // Older versions have PMI_LOCAL_SIZE alone.
  const auto older =
      task_in(without(launcher::test::pals_task(5, 8, 4), "PALS_LOCAL_SIZE"));
  CHECK(older->local_count == 4);
  const auto flux = task_in(launcher::test::flux_task(4, 5, 3));
  REQUIRE(flux);
  CHECK(flux->scheduler == "Flux");
  CHECK(flux->job_id == "f2ovXBvRR");
  CHECK(flux->host_count == 2);
  CHECK(flux->host_rank == 1);
}

TEST_CASE("variables of processes that a scheduler starts together",
          "[cluster]") {
  using Row = std::pair<Variables, const char*>;
  const auto row = GENERATE(values<Row>(
      {{{}, ""},
       {{{"PMI_SIZE", "4"}, {"PMI_RANK", "1"}}, "PMI_SIZE=4"},
       {{{"PMI_SIZE", "1"}}, ""},
       {{{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "x"}}, "PMIX_RANK=0"},
       {{{"JOB_COMPLETION_INDEX", "0"}}, "JOB_COMPLETION_INDEX=0"},
       {{{"PET_NNODES", "2"}}, "PET_NNODES=2"},
       {{{"PET_NNODES", "1:4"}}, "PET_NNODES=1:4"},
       {{{"PET_NNODES", "1"}, {"PMIX_RANK", ""}}, ""},
       {{{"PET_NNODES", "1:1"}}, ""}}));
  CHECK(ddp::detail::unread_task(reader_of(row.first)) == row.second);
}

TEST_CASE("Open MPI: the address of mpirun's host", "[cluster]") {
  using Row = std::pair<const char*, const char*>;
  const auto row = GENERATE(values<Row>(
      {{"1.0;tcp://10.0.0.1:4000", "10.0.0.1"},
       {"1.0;tcp://10.0.0.1,10.1.0.1:4000", "10.0.0.1"},
       {"1.0;tcp6://[fe80::1,fe80::2]:4000", "fe80::1"},
       {"1.0;tcp6://[fe80::1]:4000", "fe80::1"},
       {"1.0;tcp://10.0.0.1:4000;tcp6://[fd00::1]:4001", "10.0.0.1"},
       {"1.0;usock", ""},
       {"", ""}}));
  auto variables = launcher::test::open_mpi_task(1, 2, 1);
  variables["OMPI_MCA_orte_hnp_uri"] = row.first;
  CHECK(task_in(variables)->master_addr == row.second);
}

TEST_CASE("Kubernetes: pods are hosts", "[cluster]") {
  const auto task = task_in(kubeflow_pod(1, 3));
  REQUIRE(task);
  CHECK(task->scheduler == "Kubeflow");
  CHECK(task->host_rank == 1);
  CHECK(task->host_count == 3);
  CHECK(task->count == 3);
  CHECK(task->master_addr == "job-master-0");
  CHECK(task->master_port == 23456);
  // An address that other pods cannot reach is not used.
  CHECK(task_in(with(kubeflow_pod(0, 3), {{"MASTER_ADDR", "localhost"}}))
            ->master_addr == "job-master-0");
  // A launcher's worker in a pod.
  CHECK(!task_in(with(kubeflow_pod(1, 3), {{"LOCAL_RANK", "0"}})));
  CHECK(!task_in(with(kubeflow_pod(1, 3), {{"TORCHELASTIC_RUN_ID", "x"}})));
  const auto indexed = task_in(indexed_pod(2));
  REQUIRE(indexed);
  CHECK(indexed->host_rank == 2);
  CHECK(indexed->count == 0);
  CHECK(indexed->host_count == 0);
}

TEST_CASE("what a scheduler says wrongly is one line that names it",
          "[cluster]") {
  const auto five = srun_five_tasks(3);
  const auto mpi = launcher::test::open_mpi_task(1, 4, 2);
  using Row = std::pair<Variables, const char*>;
  const auto row = GENERATE_COPY(values<Row>({
      {with(five, {{"SLURM_PROCID", "x"}}), "SLURM_PROCID to be an integer"},
      {with(five, {{"SLURM_PROCID", "5"}}), "task 5 of 5"},
      {without(five, "SLURM_STEP_NUM_TASKS"), "SLURM_STEP_NUM_TASKS to be set"},
      {with(five, {{"SLURM_NODEID", "3"}}), "SLURM_NODEID to be an integer"},
      {with(five, {{"SLURM_LOCALID", "2"}}), "on this host 2 of 2"},
      {with(five, {{"SLURM_STEP_NODELIST", "node[1-999999999]"}}),
       "SLURM_STEP_NODELIST: expected a list of at most 65536 hosts"},
      {with(five, {{"SLURM_STEP_TASKS_PER_NODE", "2(x9)"}}),
       "each host of SLURM_STEP_NODELIST (3)"},
      {with(five, {{"SLURM_STEP_TASKS_PER_NODE", "2(y2)"}}),
       "SLURM_STEP_TASKS_PER_NODE: expected numbers"},
      {without(five, "SLURM_STEP_NODELIST"), "SLURM_STEP_NODELIST to be set"},
      {without(mpi, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE to be set"},
      {with(mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "0"}}),
       "OMPI_COMM_WORLD_LOCAL_SIZE to be an integer from 1"},
      {with(mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}}),
       "of Open MPI to agree"},
      {with(mpi, {{"SLURM_JOB_NODELIST", "a["}}), "SLURM_JOB_NODELIST"},
      {with(indexed_pod(0), {{"JOB_COMPLETION_INDEX", "-1"}}),
       "JOB_COMPLETION_INDEX"},
  }));
  try {
    task_in(row.first);
    FAIL("expected an error with " << row.second);
  } catch (const std::invalid_argument& error) {
    CHECK_THAT(error.what(), Contains(row.second));
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
  }
}

TEST_CASE("any environment is a task or an error", "[cluster]") {
  std::mt19937 random(3);
  const Variables all = with(
      with(with(srun_five_tasks(2), launcher::test::open_mpi_task(1, 4, 2)),
           with(launcher::test::hydra_task(1, 4, 2),
                with(launcher::test::pals_task(1, 4, 2),
                     launcher::test::flux_task(1, 4, 2)))),
      with(kubeflow_pod(1, 2), indexed_pod(1)));
  const std::vector<std::string> texts{
      "", "0", "1", "4", "-1", "2(x2),1", "a[1-3]", "a[", "4294967290", "]"};
  for (int round = 0; round < 2'000; ++round) {
    Variables variables;
    for (const auto& [name, value] : all) {
      if (random() % 3 != 0) {
        variables[name] =
            random() % 4 == 0 ? texts[random() % texts.size()] : value;
      }
    }
    try {
      const auto task = task_in(variables);
      if (task && task->count != 0) {
        CHECK(task->rank < task->count);
        CHECK(task->host_rank < task->host_count);
        CHECK((task->master_port > 0 && task->master_port <= 65535));
      }
    } catch (const std::invalid_argument&) {
    }
  }
}

TEST_CASE("ports of jobs", "[cluster]") {
  std::set<int> ports;
  for (int job = 0; job < 100; ++job) {
    const int port = port_of_job(std::to_string(100'000 + job) + ".0");
    CHECK((port >= 15000 && port < 29500));
    ports.insert(port);
  }
  CHECK(ports.size() >= 97);  // of 14,500 random ports, 0.3 pairs collide
  // The port is the same in each process, independent of its compiler.
  CHECK(port_of_job("1234.0") == 27347);
}
