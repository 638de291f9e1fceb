#include <set>

#include "launcher/machine/topology.h"
#include "launcher/plan/binding_plan.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using launcher::cpu_list;
using launcher::CpuSet;
using launcher::usable_cpus;
using namespace launcher::test;

namespace {

const Ddprun::Arguments kSayCpus{
    "sh", "-c", "sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status"};

/// Returns the CPUs that the workers of a job of `workers` report.
std::vector<std::string> cpus_of_workers(
    const Ddprun::Arguments& options,
    int workers,
    const std::function<void()>& in_child = {}) {
  Ddprun::Arguments arguments = options;
  arguments.push_back("--nproc-per-node=" + std::to_string(workers));
  arguments.insert(arguments.end(), kSayCpus.begin(), kSayCpus.end());
  // Hides GPUs, since workers are bound to CPUs near their GPU.
  const auto result =
      run_ddprun(arguments, {{"CUDA_VISIBLE_DEVICES", ""}}, "", {}, in_child);
  CHECK(result.code() == 0);
  CHECK(result.err.empty());
  std::vector<std::string> lists;
  for (int rank = 0; rank < workers; ++rank) {
    const auto lines = result.lines_of("[" + std::to_string(rank) + "] ");
    REQUIRE(lines.size() == 1);
    lists.push_back(lines.front());
  }
  return lists;
}

}  // namespace

TEST_CASE("workers run on the CPUs that --numa-binding gives them") {
  const auto topology = launcher::read_topology(usable_cpus());
  std::set<int> cores;
  for (const launcher::Cpu& cpu : topology.cpus) {
    cores.insert(cpu.core);
  }
  // The number that fits on any machine, since exclusive needs a core per
  // worker.
  const int workers = cores.size() > 1 ? 2 : 1;
  const std::vector<std::optional<int>> no_gpus(static_cast<size_t>(workers));
  for (const char* name : {"node", "socket", "exclusive", "core-complex"}) {
    CAPTURE(name);
    std::vector<std::string> expected;
    for (const auto& cpus :
         plan_binding(launcher::parse_binding(name), topology, no_gpus)) {
      expected.push_back(cpu_list(cpus));
    }
    CHECK(cpus_of_workers({"--numa-binding", name}, workers) == expected);
  }
}

TEST_CASE("what ddprun may use bounds what its workers get") {
  const int last = usable_cpus().back();
  const auto bind_to_last = [last] { CpuSet({last}).bind(); };
  for (const char* name : {"node", "socket", "exclusive", "core-complex"}) {
    CHECK(cpus_of_workers({"--numa-binding", name}, 1, bind_to_last) ==
          std::vector<std::string>{std::to_string(last)});
  }
  const auto result =
      run_ddprun({"--numa-binding=exclusive", "--nproc-per-node=2", "echo"},
                 {},
                 "",
                 {},
                 bind_to_last);
  CHECK(result.code() == 2);
  CHECK_THAT(result.err, Contains("exclusive asks for a core"));
}

TEST_CASE("without --numa-binding workers have ddprun's CPUs") {
  CHECK(cpus_of_workers({}, 2) ==
        std::vector<std::string>(2, cpu_list(usable_cpus())));
}
