#include "launcher/options/cluster_hosts.h"

#include "launcher/base/error.h"
#include "launcher/options/options.h"
#include "test/launcher/cluster/cluster_environments.h"
#include "test/launcher/rendezvous_of.h"
#include "test/support/catch.h"

using Catch::Contains;
using ddp::detail::port_of_job;
using launcher::CoordinatedConfig;
using launcher::LaunchOptions;
using namespace launcher::test;
using Words = std::vector<std::string>;

namespace {

LaunchOptions options_in(const Variables& variables, Words words = {}) {
  words.push_back("./train");
  return std::get<LaunchOptions>(
      launcher::parse_options(std::move(words), variables));
}

/// Returns the error line of a command line, or "".
std::string cluster_error(const Variables& variables, Words words = {}) {
  try {
    options_in(variables, std::move(words));
  } catch (const launcher::UsageError& error) {
    return error.what();
  }
  return "";
}

void check_is_one_host(const LaunchOptions& options) {
  CHECK(hosts_of(options) == 1);
  CHECK(rank_of(options) == 0);
  CHECK(store_of(options).host == "127.0.0.1");
  CHECK(store_of(options).port == 0);
  CHECK(options.run_id.empty());
  CHECK(options.cluster_note.empty());
}

}  // namespace

TEST_CASE("srun ddprun ./train, with no other word", "[cluster]") {
  for (int rank = 0; rank < 3; ++rank) {
    const auto options = options_in(srun_task_a_host(rank, 3));
    CHECK(hosts_of(options) == 3);
    CHECK(rank_of(options) == rank);
    CHECK(store_of(options).host == "node1");
    CHECK(store_of(options).port == port_of_job("1234.0"));
    CHECK(options.run_id == "1234.0");
    CHECK_THAT(options.cluster_note,
               Contains("Slurm says: host " + std::to_string(rank) +
                        " of 3, rank 0 on node1") &&
                   Contains("--standalone"));
    CHECK(std::get<CoordinatedConfig>(options.rendezvous).scheduler == "Slurm");
  }
  const auto said = options_in(srun_task_a_host(1, 2), {"--nnodes=2"});
  CHECK(std::get<CoordinatedConfig>(said.rendezvous).scheduler.empty());
}

TEST_CASE("mpirun and Kubeflow start one ddprun a host, too", "[cluster]") {
  const auto mpi = options_in(open_mpi_task(1, 2, 1));
  CHECK(hosts_of(mpi) == 2);
  CHECK(rank_of(mpi) == 1);
  CHECK(store_of(mpi).host == "172.17.0.2");
  const auto kubeflow = options_in(kubeflow_pod(1, 2));
  CHECK(hosts_of(kubeflow) == 2);
  CHECK(rank_of(kubeflow) == 1);
  CHECK(store_of(kubeflow).host == "job-master-0");
  CHECK(store_of(kubeflow).port == 23456);
  CHECK_THAT(kubeflow.cluster_note, Contains("Kubeflow says"));
  const auto pmi = options_in(hydra_task(1, 2, 1), {"--master-addr=h"});
  CHECK(rank_of(pmi) == 1);
  CHECK(store_of(pmi).host == "h");
  CHECK_THAT(cluster_error(hydra_task(1, 2, 1)),
             Contains("--master-addr: expected the name of host 0, which MPICH "
                      "does not tell"));
}

TEST_CASE("where mpirun does not say who has rank 0, MASTER_ADDR does",
          "[cluster]") {
  const auto task = with(hydra_task(1, 2, 1), {{"MASTER_ADDR", "h"}});
  const auto named = options_in(task);
  CHECK(hosts_of(named) == 2);
  CHECK(store_of(named).host == "h");
  CHECK(store_of(named).port == port_of_job(""));
  CHECK(store_of(options_in(with(task, {{"MASTER_PORT", "1234"}}))).port ==
        1234);
  CHECK_THAT(cluster_error(with(task, {{"MASTER_PORT", "x"}})),
             Contains("MASTER_PORT"));
  CHECK(store_of(options_in(task, {"--master-addr=other"})).host == "other");
  // If the scheduler gives the address, MASTER_ADDR is not read.
  const auto told = with(srun_task_a_host(1, 2), {{"MASTER_ADDR", "h"}});
  CHECK(store_of(options_in(told)).host != "h");
}

TEST_CASE("an indexed Job says which host, and no more", "[cluster]") {
  check_is_one_host(options_in(indexed_pod(3)));
  const auto options =
      options_in(indexed_pod(3), {"--nnodes=4", "--master-addr=job-0"});
  CHECK(rank_of(options) == 3);
  CHECK(hosts_of(options) == 4);
  CHECK(store_of(options).port == 29500);
  CHECK_THAT(cluster_error(indexed_pod(3), {"--nnodes=2", "--master-addr=h"}),
             Contains("--node-rank: expected a rank below --nnodes (2)"));
}

TEST_CASE("where no scheduler has started ddprun, it is one host",
          "[cluster]") {
  check_is_one_host(options_in({}));
  check_is_one_host(options_in(sbatch_script()));
  check_is_one_host(options_in(salloc_shell()));
  check_is_one_host(options_in(interactive_step()));
  check_is_one_host(options_in(srun_task_a_host(0, 1)));
  check_is_one_host(options_in(open_mpi_task(0, 1, 1)));
  // A job inside a worker of another job.
  check_is_one_host(options_in(
      with(srun_task_a_host(1, 2), {{"TORCHELASTIC_RUN_ID", "outer"}})));
}

TEST_CASE("ddprun of a scheduler whose hosts it cannot read", "[cluster]") {
  const Variables pmix{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "x"}};
  CHECK_THAT(cluster_error(pmix),
             Contains("PMIX_RANK=1") && Contains("--nnodes=1") &&
                 Contains("--standalone"));
  check_is_one_host(options_in(pmix, {"--nnodes=1"}));
  check_is_one_host(options_in(pmix, {"--standalone"}));
}

TEST_CASE("hosts meet at the scheduler's first one", "[cluster]") {
  const auto variables = srun_task_a_host(1, 3);
  const auto told = options_in(variables, {"--rdzv-backend=c10d"});
  const auto& first = std::get<CoordinatedConfig>(told.rendezvous);
  CHECK(first.coordinator.endpoint.host == "node1");
  CHECK(first.coordinator.endpoint.port == port_of_job("1234.0"));
  CHECK(first.terms.least_hosts == 3);
  CHECK(first.terms.most_hosts == 3);
  CHECK(first.wanted_rank == 1);

  // The usual command line of torchrun.
  const auto named = options_in(
      variables,
      {"--nnodes=3", "--rdzv-backend=c10d", "--rdzv-endpoint=ib1:7000"});
  const auto& usual = std::get<CoordinatedConfig>(named.rendezvous);
  CHECK(usual.coordinator.endpoint.host == "ib1");
  CHECK(usual.coordinator.endpoint.port == 7000);
  CHECK(usual.wanted_rank == 1);

  // A range of hosts does not match the scheduler's, and --master-addr is for
  // static hosts.
  const auto option = GENERATE("--nnodes=1:4", "--master-addr=ib1");
  CHECK_THAT(cluster_error(variables, {"--rdzv-backend=c10d", option}),
             Contains("--rdzv-endpoint: expected the host where"));
}

TEST_CASE("what the user says beats the scheduler", "[cluster]") {
  const auto variables = srun_task_a_host(1, 3);
  check_is_one_host(options_in(variables, {"--standalone"}));
  check_is_one_host(options_in(with(variables, {{"PET_STANDALONE", "1"}})));
  check_is_one_host(options_in(variables, {"--nnodes=1"}));
  check_is_one_host(options_in(with(variables, {{"PET_NNODES", "1"}})));

  // Options replace single values as long as the hosts stay the same.
  const auto port = options_in(variables, {"--master-port=7000"});
  CHECK(store_of(port).host == "node1");
  CHECK(store_of(port).port == 7000);
  CHECK(rank_of(port) == 1);
  const auto endpoint = options_in(variables, {"--rdzv-endpoint=ib1:7000"});
  CHECK(store_of(endpoint).host == "ib1");
  CHECK(store_of(endpoint).port == 7000);
  CHECK(hosts_of(endpoint) == 3);
  const auto named = options_in(variables, {"--nnodes=3", "--master-addr=ib1"});
  CHECK(rank_of(named) == 1);
  CHECK(store_of(named).port == 29500);
  CHECK(rank_of(options_in(variables, {"--node-rank=2"})) == 2);
  CHECK(options_in(variables, {"--rdzv-id=mine"}).run_id == "mine");
  CHECK(rank_of(options_in(with(variables, {{"PET_NODE_RANK", "0"}}))) == 0);

  // With other hosts than Slurm's, none of Slurm's values apply.
  const auto others =
      options_in(variables, {"--nnodes=2", "--master-addr=other"});
  CHECK(hosts_of(others) == 2);
  CHECK(rank_of(others) == 0);
  CHECK(others.cluster_note.empty());

  const auto all = options_in(
      srun_five_tasks(3), {"--nnodes=5", "--node-rank=3", "--master-addr=h"});
  CHECK(hosts_of(all) == 5);
  CHECK(all.cluster_note.empty());
}

TEST_CASE("one ddprun for each GPU is a mistake, told in one line",
          "[cluster]") {
  const std::string slurm = cluster_error(srun_five_tasks(3));
  CHECK(slurm ==
        "expected one ddprun a host, which starts the workers there, but Slurm "
        "has started 5 tasks on 3 hosts; give srun --ntasks-per-node=1 and "
        "ddprun --nproc-per-node=N, or start the program without ddprun "
        "(--standalone leaves the scheduler's variables unread)");
  CHECK_THAT(
      cluster_error(open_mpi_task(1, 4, 4)),
      Contains("4 tasks on 1 host;") && Contains("mpirun --map-by ppr:1:node"));
  CHECK_THAT(cluster_error(hydra_task(1, 4, 4)), Contains("mpiexec -ppn 1"));
  CHECK_THAT(cluster_error(srun_five_tasks(3), {"--master-addr=h"}),
             Contains("expected one ddprun a host"));
  // Separate jobs side by side.
  CHECK(cluster_error(srun_five_tasks(3), {"--standalone"}).empty());
  CHECK(cluster_error(srun_five_tasks(3), {"--nnodes=1"}).empty());
}

TEST_CASE("a scheduler's variable that cannot be read", "[cluster]") {
  const auto variables =
      with(srun_task_a_host(0, 2), {{"SLURM_STEP_NODELIST", "node[1-"}});
  CHECK_THAT(cluster_error(variables),
             Contains("SLURM_STEP_NODELIST: expected a list of hosts") &&
                 Contains("; --standalone leaves"));
  CHECK(cluster_error(variables, {"--standalone"}).empty());
}
