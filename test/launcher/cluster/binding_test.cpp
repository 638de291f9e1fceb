#include "launcher/plan/binding_plan.h"

#include <numeric>
#include <set>

#include "launcher/workers/output/run_directory.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using launcher::Binding;
using launcher::cpu_list;
using launcher::parse_cpu_list;
using launcher::plan_binding;
using launcher::Topology;
using CpuLists = std::vector<std::string>;
using GpuNodes = std::vector<std::optional<int>>;

namespace {

/// A machine as described in /sys, as lists of CPUs.
struct Machine {
  CpuLists cores;
  CpuLists complexes;  ///< share the last-level cache
  CpuLists nodes;
  CpuLists sockets;
};

/// Two sockets, each with one NUMA node, one cache and eight cores with two
/// threads.
Machine xeon() {
  Machine machine{{},
                  {"0-7,16-23", "8-15,24-31"},
                  {"0-7,16-23", "8-15,24-31"},
                  {"0-7,16-23", "8-15,24-31"}};
  for (int core = 0; core < 16; ++core) {
    machine.cores.push_back(std::to_string(core) + "," +
                            std::to_string(core + 16));
  }
  return machine;
}

/// Two sockets with two NUMA nodes each, two core complexes per node, three
/// cores per complex, one thread per core.
Machine epyc() {
  Machine machine{
      {},
      {"0-2", "3-5", "6-8", "9-11", "12-14", "15-17", "18-20", "21-23"},
      {"0-5", "6-11", "12-17", "18-23"},
      {"0-11", "12-23"}};
  for (int core = 0; core < 24; ++core) {
    machine.cores.push_back(std::to_string(core));
  }
  return machine;
}

int cpu_count_of(const Machine& machine) {
  int count = 0;
  for (const std::string& list : machine.nodes) {
    count += static_cast<int>(parse_cpu_list(list).size());
  }
  return count;
}

std::vector<int> all_cpus_of(const Machine& machine) {
  std::vector<int> cpus(static_cast<size_t>(cpu_count_of(machine)));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

void write_sys_file(const std::string& path, const std::string& text) {
  launcher::make_directories(path.substr(0, path.rfind('/')));
  ddp::test::write_file(path, text + "\n");
}

/// Writes the folders of /sys that a kernel would show.
void write_sys(const std::string& root, const Machine& machine) {
  const std::string system = root + "/sys/devices/system";
  const auto for_each_cpu = [&](const CpuLists& lists, const auto& write) {
    for (size_t index = 0; index < lists.size(); ++index) {
      for (const int cpu : parse_cpu_list(lists[index])) {
        write(system + "/cpu/cpu" + std::to_string(cpu), index, lists[index]);
      }
    }
  };
  for_each_cpu(machine.cores, [](auto folder, size_t, auto list) {
    write_sys_file(folder + "/topology/thread_siblings_list", list);
    write_sys_file(folder + "/cache/index1/level", "1");
    write_sys_file(folder + "/cache/index1/shared_cpu_list", list);
  });
  // The index of a cache does not follow its level.
  for_each_cpu(machine.complexes, [](auto folder, size_t, auto list) {
    write_sys_file(folder + "/cache/index0/level", "3");
    write_sys_file(folder + "/cache/index0/shared_cpu_list", list);
  });
  for_each_cpu(machine.sockets, [](auto folder, size_t index, auto) {
    write_sys_file(folder + "/topology/physical_package_id",
                   std::to_string(index));
  });
  write_sys_file(system + "/node/online",
                 "0-" + std::to_string(machine.nodes.size()));
  for (size_t node = 0; node < machine.nodes.size(); ++node) {
    write_sys_file(system + "/node/node" + std::to_string(node) + "/cpulist",
                   machine.nodes[node]);
  }
  // Memory without CPUs is a node, too.
  write_sys_file(
      system + "/node/node" + std::to_string(machine.nodes.size()) + "/cpulist",
      "");
}

Topology topology_of(const Machine& machine, const std::vector<int>& cpus) {
  const ddp::test::TemporaryFolder folder;
  write_sys(folder.path(), machine);
  return launcher::read_topology(cpus, folder.path());
}

/// Cached, because it is read from at least one file per CPU.
const Topology& topology_of_xeon() {
  static const Topology topology = topology_of(xeon(), all_cpus_of(xeon()));
  return topology;
}

const Topology& topology_of_epyc() {
  static const Topology topology = topology_of(epyc(), all_cpus_of(epyc()));
  return topology;
}

CpuLists bound(Binding binding,
               const Topology& topology,
               const GpuNodes& gpu_nodes) {
  CpuLists lists;
  for (const auto& cpus : plan_binding(binding, topology, gpu_nodes)) {
    lists.push_back(cpu_list(cpus));
  }
  return lists;
}

CpuLists bound(Binding binding, const Topology& topology, int workers) {
  return bound(binding, topology, GpuNodes(static_cast<size_t>(workers)));
}

}  // namespace

TEST_CASE("lists of CPUs as the kernel writes them", "[binding]") {
  CHECK(parse_cpu_list("0-3,8") == std::vector<int>{0, 1, 2, 3, 8});
  CHECK(parse_cpu_list("5") == std::vector<int>{5});
  for (const char* text : {"", "x", "1-", "3-1", "0-999999999"}) {
    CHECK(parse_cpu_list(text).empty());
  }
  CHECK(cpu_list({0, 1, 2, 3, 8}) == "0-3,8");
  CHECK(cpu_list({5}) == "5");
  CHECK(cpu_list({}).empty());
}

TEST_CASE("a machine is read from /sys", "[binding]") {
  const Topology& topology = topology_of_epyc();
  REQUIRE(topology.cpus.size() == 24);
  for (int id = 0; id < 24; ++id) {
    const auto& cpu = topology.cpus[static_cast<size_t>(id)];
    CHECK(cpu.id == id);
    CHECK(cpu.core == id);
    CHECK(cpu.cache == id / 3 * 3);
    CHECK(cpu.node == id / 6);
    CHECK(cpu.socket == id / 12);
  }
  CHECK(topology_of_xeon().cpus[20].core == 4);
  CHECK(topology_of_xeon().cpus[20].cache == 0);
  CHECK(topology.gpu_nodes.empty());
}

TEST_CASE("GPUs and their nodes are read in the order of the bus",
          "[binding]") {
  const ddp::test::TemporaryFolder folder;
  const std::pair<const char*, const char*> gpus[] = {
      {"0000:81:00.0", "1"}, {"0000:3b:00.0", "0"}, {"0000:c1:00.0", "-1"}};
  for (const auto& [place, node] : gpus) {
    launcher::make_directories(folder / "proc/driver/nvidia/gpus/" + place);
    write_sys_file(folder / "sys/bus/pci/devices/" + place + "/numa_node",
                   node);
  }
  CHECK(launcher::read_topology({0}, folder.path()).gpu_nodes ==
        std::vector<int>{0, 1, -1});
}

TEST_CASE("where /sys says nothing, all CPUs are one node", "[binding]") {
  const ddp::test::TemporaryFolder folder;
  const Topology topology =
      launcher::read_topology({0, 1, 2, 3}, folder.path());
  CHECK(bound(Binding::node, topology, 2) == CpuLists{"0-3", "0-3"});
  CHECK(bound(Binding::socket, topology, 1) == CpuLists{"0-3"});
  CHECK(bound(Binding::exclusive, topology, 2) == CpuLists{"0-1", "2-3"});
  CHECK(bound(Binding::core_complex, topology, 1) == CpuLists{"0-3"});
}

TEST_CASE("without GPUs workers spread over the nodes", "[binding]") {
  const Topology& two = topology_of_xeon();
  CHECK(bound(Binding::node, two, 1) == CpuLists{"0-7,16-23"});
  CHECK(bound(Binding::node, two, 2) == CpuLists{"0-7,16-23", "8-15,24-31"});
  CHECK(bound(Binding::node, two, 4) ==
        CpuLists{"0-7,16-23", "0-7,16-23", "8-15,24-31", "8-15,24-31"});
  const Topology& four = topology_of_epyc();
  CHECK(bound(Binding::node, four, 2) == CpuLists{"0-5", "12-17"});
  CHECK(bound(Binding::socket, four, 2) == CpuLists{"0-11", "12-23"});
  CHECK(bound(Binding::socket, four, 4) ==
        CpuLists{"0-11", "0-11", "12-23", "12-23"});
}

TEST_CASE("exclusive: whole cores in equal parts", "[binding]") {
  const Topology& two = topology_of_xeon();
  CHECK(bound(Binding::exclusive, two, 4) ==
        CpuLists{"0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"});
  // The first workers of each node get the remaining cores.
  CHECK(bound(Binding::exclusive, two, 6) == CpuLists{"0-2,16-18",
                                                      "3-5,19-21",
                                                      "6-7,22-23",
                                                      "8-10,24-26",
                                                      "11-13,27-29",
                                                      "14-15,30-31"});
  CHECK_THROWS_WITH(bound(Binding::exclusive, two, 17),
                    Contains("--numa-binding: exclusive asks for a core for "
                             "each of 9 workers on NUMA node 0, but it has 8"));
}

TEST_CASE("core-complex: the caches of a node in turn", "[binding]") {
  const Topology& four = topology_of_epyc();
  CHECK(bound(Binding::core_complex, four, 8) == epyc().complexes);
  CHECK(bound(Binding::core_complex, four, GpuNodes(3, 1)) ==
        CpuLists{"6-8", "9-11", "6-8"});
  // The largest of the available complexes comes first.
  const Topology part = topology_of(epyc(), {0, 3, 4, 5});
  CHECK(bound(Binding::core_complex, part, 2) == CpuLists{"3-5", "0"});
}

TEST_CASE("a worker is near its GPU", "[binding]") {
  const Topology& two = topology_of_xeon();
  CHECK(bound(Binding::node, two, GpuNodes{1, 0}) ==
        CpuLists{"8-15,24-31", "0-7,16-23"});
  CHECK(bound(Binding::exclusive, two, GpuNodes{1, 1, 0}) ==
        CpuLists{"8-11,24-27", "12-15,28-31", "0-7,16-23"});
  // Unknown node of a GPU, and a GPU on a node without available CPUs.
  CHECK(bound(Binding::node, two, GpuNodes{1, std::nullopt}) ==
        CpuLists{"8-15,24-31", "8-15,24-31"});
  CHECK(bound(Binding::node, topology_of(xeon(), {0, 1}), GpuNodes{1}) ==
        CpuLists{"0-1"});
}

TEST_CASE("CPUs that ddprun may not use are nobody's", "[binding]") {
  // As with taskset or a cgroup's cpuset: three cores, one with a single
  // thread.
  const Topology part = topology_of(xeon(), {1, 2, 17, 9, 25});
  CHECK(bound(Binding::node, part, 2) == CpuLists{"1-2,17", "9,25"});
  CHECK(bound(Binding::exclusive, part, 3) == CpuLists{"1,17", "2", "9,25"});
}

TEST_CASE("any number of workers: some CPUs for each, and own ones where asked",
          "[binding]") {
  const Topology topology = GENERATE(topology_of_xeon(), topology_of_epyc());
  const auto binding = GENERATE(Binding::node,
                                Binding::socket,
                                Binding::exclusive,
                                Binding::core_complex);
  for (size_t workers = 1; workers <= 16; ++workers) {
    const auto plan = plan_binding(binding, topology, GpuNodes(workers));
    REQUIRE(plan.size() == workers);
    std::set<int> seen;
    size_t count = 0;
    for (const auto& cpus : plan) {
      CHECK(!cpus.empty());
      CHECK(std::is_sorted(cpus.begin(), cpus.end()));
      seen.insert(cpus.begin(), cpus.end());
      count += cpus.size();
    }
    CHECK((binding != Binding::exclusive || seen.size() == count));
  }
}
