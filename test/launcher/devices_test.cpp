#include "launcher/plan/devices.h"

#include "launcher/base/error.h"
#include "launcher/plan/plan.h"
#include "test/support/catch.h"

using Catch::Contains;
using launcher::Environment;
using launcher::HostInfo;
using launcher::Job;
using launcher::LaunchOptions;
using Kind = launcher::WorkerCount::Kind;

TEST_CASE("GPUs are chosen among those that can be seen") {
  const HostInfo host{.name = "h", .cpu_count = 6, .gpu_count = 4};
  const HostInfo bare{.name = "h", .cpu_count = 6, .gpu_count = 0};
  const Environment masked{{"CUDA_VISIBLE_DEVICES", "3, 1"}};
  using Ids = std::vector<std::string>;
  CHECK(visible_gpus(host, {}) == Ids{"0", "1", "2", "3"});
  CHECK(visible_gpus(host, masked) == Ids{"3", "1"});
  CHECK(visible_gpus(host, {{"CUDA_VISIBLE_DEVICES", ""}}).empty());
  CHECK(visible_gpus(host, {{"CUDA_VISIBLE_DEVICES", "-1"}}).empty());
  CHECK(visible_gpus(host, {{"CUDA_VISIBLE_DEVICES", "2,-1,0"}}) == Ids{"2"});
  CHECK(visible_gpus(host, {{"CUDA_VISIBLE_DEVICES", "NoDevFiles"}}).empty());
  CHECK(visible_gpus(host, {{"CUDA_VISIBLE_DEVICES", "GPU-5e3,MIG-1"}}) ==
        Ids{"GPU-5e3", "MIG-1"});
  CHECK(visible_gpus(bare, masked).empty());
  CHECK_THROWS_WITH(visible_gpus(host, {{"CUDA_VISIBLE_DEVICES", "1,0, 1"}}),
                    Contains("CUDA_VISIBLE_DEVICES=1,0, 1 names GPU 1 twice"));
  CHECK(visible_gpus(bare, {{"CUDA_VISIBLE_DEVICES", "0,0"}}).empty());
  CHECK_THROWS_WITH(
      visible_gpus(host, {{"CUDA_VISIBLE_DEVICES", "0,4"}}),
      Contains("names GPU 4, but this host has 4, numbered from 0"));

  LaunchOptions options;
  CHECK(!chosen_gpus(options, host, {}));
  options.gpus = Ids{"1", "3"};
  CHECK(chosen_gpus(options, host, {}) == "1,3");
  CHECK(chosen_gpus(options, host, masked) == "1,3");
  options.gpus = Ids{"4"};
  CHECK_THROWS_WITH(chosen_gpus(options, host, {}),
                    Contains("--gpus: ") && Contains("got 4") &&
                        Contains("this host has 4, numbered from 0"));
  CHECK_THROWS_WITH(chosen_gpus(options, bare, {}),
                    Contains("this host has none"));
  options.gpus = Ids{"0"};
  CHECK_THROWS_WITH(
      chosen_gpus(options, host, masked),
      Contains("got 0 and CUDA_VISIBLE_DEVICES=3, 1 does not show it"));
}

TEST_CASE("a GPU for each worker, or one line that says there are too few") {
  const HostInfo host{.name = "h", .cpu_count = 6, .gpu_count = 4};
  const HostInfo bare{.name = "h", .cpu_count = 6, .gpu_count = 0};
  const Environment masked{{"CUDA_VISIBLE_DEVICES", "3, GPU-1"}};
  using Ids = std::vector<std::string>;
  LaunchOptions options;
  CHECK(gpus_by_worker(options, host, {}, 3) == Ids{"0", "1", "2"});
  CHECK(gpus_by_worker(options, host, masked, 2) == Ids{"3", "GPU-1"});
  CHECK(gpus_by_worker(options, bare, {}, 2) == Ids{"0", "1"});
  CHECK(gpus_by_worker(options, bare, masked, 1) == Ids{"3"});
  CHECK_THROWS_WITH(gpus_by_worker(options, host, {}, 5),
                    "--virtual-local-rank: expected as many GPUs as workers "
                    "(5), but got 0,1,2,3 (all of this host); start fewer "
                    "workers or give more GPUs");
  CHECK_THROWS_WITH(gpus_by_worker(options, bare, masked, 3),
                    Contains("but got 3,GPU-1 (CUDA_VISIBLE_DEVICES)"));
  CHECK_THROWS_WITH(
      gpus_by_worker(options, host, {{"CUDA_VISIBLE_DEVICES", ""}}, 1),
      Contains("but got none (CUDA_VISIBLE_DEVICES)"));
  options.gpus = Ids{"2", "1"};
  CHECK(gpus_by_worker(options, host, masked, 2) == Ids{"2", "1"});
  CHECK_THROWS_WITH(gpus_by_worker(options, host, {}, 3),
                    Contains("but got 2,1 (--gpus)"));

  options.program = {"/bin/sh"};
  options.virtual_local_rank = true;
  const Job job = make_job(options, host, {}, "unique");
  CHECK(job.gpu_of_worker == Ids{"2", "1"});
  options.virtual_local_rank = false;
  CHECK(make_job(options, host, {}, "unique").gpu_of_worker.empty());
}

TEST_CASE("workers with MIG devices get one each: CUDA shows no more") {
  const HostInfo host{.name = "h", .cpu_count = 6, .gpu_count = 1};
  const Environment masked{{"CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b"}};
  using Ids = std::vector<std::string>;
  LaunchOptions options;
  options.program = {"/bin/sh"};
  const auto job = [&](int workers, const Environment& environment) {
    options.worker_count = {Kind::number, workers};
    return make_job(options, host, environment, "unique");
  };
  CHECK(job(2, masked).gpu_of_worker == Ids{"MIG-a", "MIG-b"});
  CHECK_THAT(job(2, masked).warnings.at(0), Contains("one MIG device alone"));
  CHECK(job(1, masked).gpu_of_worker.empty());
  CHECK(job(3, masked).gpu_of_worker.empty());
  CHECK(
      job(2, {{"CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b"}}).gpu_of_worker.empty());
  options.gpus = Ids{"MIG-b", "MIG-a"};
  CHECK(job(2, masked).gpu_of_worker == *options.gpus);
}

TEST_CASE("worker counts follow the machine") {
  const HostInfo host{.name = "h", .cpu_count = 6, .gpu_count = 4};
  const HostInfo bare{.name = "h", .cpu_count = 6, .gpu_count = 0};
  const Environment masked{{"CUDA_VISIBLE_DEVICES", "3,1"}};
  LaunchOptions options;
  CHECK(choose_worker_count(options, host, {}) == 1);
  options.gpus = {{"0", "2", "3"}};
  CHECK(choose_worker_count(options, host, {}) == 3);
  options.worker_count = {Kind::number, 7};
  CHECK(choose_worker_count(options, host, {}) == 7);
  options.worker_count = {Kind::gpu, 0};
  CHECK(choose_worker_count(options, host, {}) == 3);
  options.gpus.reset();
  CHECK(choose_worker_count(options, host, {}) == 4);
  CHECK(choose_worker_count(options, host, masked) == 2);
  CHECK_THROWS_WITH(choose_worker_count(options, bare, {}),
                    Contains("--nproc-per-node: gpu asks"));
  CHECK_THROWS_WITH(
      choose_worker_count(options, host, {{"CUDA_VISIBLE_DEVICES", ""}}),
      Contains("shows none"));
  options.worker_count = {Kind::automatic, 0};
  CHECK(choose_worker_count(options, host, masked) == 2);
  CHECK(choose_worker_count(options, bare, {}) == 6);
  options.worker_count = {Kind::cpu, 0};
  CHECK(choose_worker_count(options, host, {}) == 6);
}

TEST_CASE("a job knows how many GPUs its workers see") {
  const HostInfo host{.name = "h", .cpu_count = 6, .gpu_count = 4};
  LaunchOptions options;
  options.program = {"/bin/sh"};
  CHECK(make_job(options, host, {}, "unique").gpu_count == 4);
  CHECK(make_job(options, host, {{"CUDA_VISIBLE_DEVICES", "2,3"}}, "unique")
            .gpu_count == 2);
  CHECK(make_job(options, HostInfo{}, {}, "unique").gpu_count == 0);
  options.gpus = {{"1"}};
  CHECK(make_job(options, host, {}, "unique").gpu_count == 1);
}
