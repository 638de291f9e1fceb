#include "launcher/options/options.h"
#include "launcher/plan/binding_plan.h"
#include "launcher/plan/devices.h"
#include "launcher/plan/plan.h"
#include "test/support/catch.h"

using Catch::Contains;
using launcher::Binding;
using launcher::cpu_list;
using GpuNodes = std::vector<std::optional<int>>;

TEST_CASE("--numa-binding reaches the workers", "[binding]") {
  using launcher::parse_options;
  auto options = std::get<launcher::LaunchOptions>(parse_options(
      {"--numa-binding=node", "--nproc-per-node=2", "/bin/sh"}, {}));
  REQUIRE(options.numa_binding == Binding::node);
  launcher::HostInfo host{.name = "h", .cpu_count = 4, .gpu_count = 2};
  host.topology.cpus = {{.id = 0, .node = 0},
                        {.id = 1, .node = 0},
                        {.id = 4, .node = 1},
                        {.id = 5, .node = 1}};
  host.topology.gpu_nodes = {0, 1};
  const launcher::Environment swapped{{"CUDA_VISIBLE_DEVICES", "1,0"}};
  const auto job = make_job(options, host, swapped, "unique");
  const auto plan = make_plan(job, {{.world_size = 2}, ""});
  CHECK(cpu_list(plan.workers[0].cpus) == "4-5");
  CHECK(cpu_list(plan.workers[1].cpus) == "0-1");
  CHECK_THAT(describe(plan),
             Contains("# rank 0, local rank 0\ntaskset -c 4-5 env \\\n"));
  options.numa_binding.reset();
  CHECK(
      make_plan(make_job(options, host, {}, "unique"), {{.world_size = 2}, ""})
          .workers[0]
          .cpus.empty());
  CHECK_THROWS_WITH(
      parse_options({"--numa-binding=near", "p"}, {}),
      Contains("--numa-binding: expected one of node, socket, exclusive, "
               "core-complex, but got \"near\""));
}

TEST_CASE("the GPU of a worker is that which it sees", "[binding]") {
  launcher::LaunchOptions options;
  launcher::HostInfo host{.name = "h", .cpu_count = 4, .gpu_count = 3};
  host.topology.gpu_nodes = {0, 1, -1};
  const auto nodes = [&](const launcher::Environment& environment,
                         int workers) {
    return gpu_nodes_of_workers(options, host, environment, workers);
  };
  CHECK(nodes({}, 2) == GpuNodes{0, 1});
  CHECK(nodes({}, 4) == GpuNodes{0, 1, std::nullopt, std::nullopt});
  CHECK(nodes({{"CUDA_VISIBLE_DEVICES", "1,GPU-5e3"}}, 2) ==
        GpuNodes{1, std::nullopt});
  options.gpus = {{"1"}};
  CHECK(nodes({}, 1) == GpuNodes{1});
}
