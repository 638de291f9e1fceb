#include "launcher/doctor/diagnose.h"

#include "launcher/doctor/doctor_report.h"
#include "test/launcher/doctor/machines.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace launcher::test;

namespace {

/// Returns the doctor's finding about a subject, as a line.
std::string line_about(const std::string& subject,
                       const MachineFacts& machine,
                       const JobShape& job = {.workers = 4}) {
  for (const Finding& finding : diagnose(machine, job)) {
    if (finding.subject == subject) {
      MachineFacts bare;
      std::string line = doctor_text(bare, {finding});
      line.pop_back();
      return line;
    }
  }
  return "";
}

bool is_all_well(const Findings& findings) {
  for (const Finding& finding : findings) {
    CAPTURE(finding.subject, finding.text);
    CHECK(finding.severity == Severity::ok);
    CHECK(finding.fix.empty());
  }
  return exit_code_of(findings) == 0;
}

}  // namespace

TEST_CASE("a doctor finds nothing wrong with a sound machine") {
  CHECK(is_all_well(diagnose(sound_machine(), {.workers = 4})));
  CHECK(is_all_well(diagnose(gpu_machine(), {.workers = 8})));
}

TEST_CASE("every finding that is not ok says what to do") {
  MachineFacts machine = gpu_machine();
  machine.environment = {{"CUDA_VISIBLE_DEVICES", "9"}};
  machine.gpu.cuda = 12020;
  machine.network.host = {"node7", "Name or service not known", {}};
  machine.network.endpoint = NameFacts{"node0", "Try again", {}};
  machine.network.ports = {{29500, "--master-port", "it is in use"}};
  machine.system = {};
  machine.all_reduce.nccl = 21805;
  machine.all_reduce.error = "rank 3 is gone";
  int others = 0;
  for (const Finding& finding : diagnose(machine, {.workers = 9})) {
    CAPTURE(finding.subject, finding.text);
    CHECK((finding.severity == Severity::ok) == finding.fix.empty());
    others += finding.severity != Severity::ok ? 1 : 0;
  }
  CHECK(others >= 9);
}

TEST_CASE("a machine without GPUs says so, and is well") {
  CHECK(line_about("GPUs", sound_machine()) ==
        "ok       GPUs: none: ranks run on CPUs, over Gloo");
  CHECK(usual_worker_count(sound_machine()) == 2);
}

TEST_CASE("GPUs, their driver and their links") {
  const MachineFacts machine = gpu_machine();
  const JobShape job{.workers = 8};
  CHECK(line_about("GPUs", machine, job) ==
        "ok       GPUs: 8 NVIDIA H200 of 141 GiB, driver 580.65.06 for CUDA "
        "up to 13.0");
  CHECK(line_about("workers", machine, job) ==
        "ok       workers: 8 workers for 8 GPUs");
  CHECK(line_about("links", machine, job) ==
        "ok       links: NVLink between all GPUs, 18 links a pair");
  CHECK(line_about("NUMA", machine, job) ==
        "ok       NUMA: GPUs are on 2 nodes; --numa-binding=node keeps each "
        "worker near its own");
  CHECK(usual_worker_count(machine) == 8);
}

TEST_CASE("GPUs that are not as they should be") {
  MachineFacts machine = gpu_machine();
  SECTION("a driver that does not answer") {
    machine.gpu.gpus.clear();
    machine.gpu.driver_error = "Driver/library version mismatch";
    CHECK_THAT(line_about("GPUs", machine),
               Contains("error    GPUs: the NVIDIA driver does not answer "
                        "(Driver/library version mismatch); run nvidia-smi"));
  }
  SECTION("device files and no nvidia-smi") {
    machine.gpu = {};
    machine.gpu.device_files = 2;
    CHECK_THAT(line_about("GPUs", machine),
               Contains("warning  GPUs: 2 GPUs in /dev, but no nvidia-smi "
                        "to ask; in a container"));
  }
  SECTION("a link that is down") {
    for (size_t other = 0; other < 8; ++other) {
      machine.gpu.links[3][other] = "SYS";
      machine.gpu.links[other][3] = "SYS";
    }
    CHECK_THAT(line_about("links", machine),
               Contains("warning  links: GPU 3 with fewer NVLinks"));
  }
  SECTION("no NVLink at all") {
    for (auto& row : machine.gpu.links) {
      for (std::string& link : row) {
        link = "NODE";
      }
    }
    CHECK_THAT(line_about("links", machine), Contains("ok       links: no"));
  }
  SECTION("kinds that differ") {
    machine.gpu.gpus[7].name = "NVIDIA L4";
    CHECK_THAT(line_about("GPUs", machine),
               Contains("7 NVIDIA H200 of 141 GiB and 1 NVIDIA L4 of"));
    CHECK_THAT(line_about("CUDA_DEVICE_ORDER", machine),
               Contains("; set CUDA_DEVICE_ORDER=PCI_BUS_ID"));
    machine.environment = {{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}};
    CHECK(line_about("CUDA_DEVICE_ORDER", machine).empty());
  }
  SECTION("more workers than GPUs") {
    CHECK_THAT(line_about("workers", machine, {.workers = 9}),
               Contains("error    workers: 9 workers for 8 GPUs") &&
                   Contains("; start --nproc-per-node=8"));
  }
  SECTION("a node whose CPUs are not to be used") {
    machine.system.topology.cpus.resize(32);
    CHECK_THAT(line_about("NUMA", machine),
               Contains("warning  NUMA: GPU 4 is on node 1"));
  }
}

TEST_CASE("CUDA_VISIBLE_DEVICES against the GPUs there are") {
  const auto line_for = [](const std::string& value,
                           MachineFacts machine = gpu_machine()) {
    machine.environment["CUDA_VISIBLE_DEVICES"] = value;
    return line_about("CUDA_VISIBLE_DEVICES", machine);
  };
  CHECK(line_for("2,3,4,5") ==
        "ok       CUDA_VISIBLE_DEVICES: CUDA_VISIBLE_DEVICES=2,3,4,5 shows 4 "
        "GPUs of 8");
  CHECK(line_for("9") ==
        "error    CUDA_VISIBLE_DEVICES: CUDA_VISIBLE_DEVICES=9 names GPU 9, "
        "but this host has 8, numbered from 0; correct or unset it");
  CHECK_THAT(line_for("1,1"), Contains("names GPU 1 twice; name each once"));
  CHECK_THAT(line_for("GPU-3a"), Contains("shows 1 GPU of 8"));
  CHECK_THAT(line_for("GPU-77"), Contains("error") && Contains("nvidia-smi"));
  CHECK_THAT(line_for(""), Contains("warning") && Contains("hides all GPUs"));
  CHECK_THAT(line_for("-1"), Contains("hides all GPUs"));
  CHECK(line_for("9", sound_machine()) ==
        "warning  CUDA_VISIBLE_DEVICES: CUDA_VISIBLE_DEVICES=9 names GPUs, but "
        "this host has none; unset it");
  CHECK_THAT(line_for("", sound_machine()), Contains("ok "));
}

TEST_CASE("the GPUs that are seen are those that workers are counted by") {
  MachineFacts machine = gpu_machine();
  machine.environment["CUDA_VISIBLE_DEVICES"] = "2,3";
  CHECK(usual_worker_count(machine) == 2);
  CHECK_THAT(line_about("workers", machine), Contains("4 workers for 2 GPUs"));
  machine.environment["CUDA_VISIBLE_DEVICES"] = "9";
  CHECK(usual_worker_count(machine) == 2);
  CHECK(line_about("workers", machine).empty());
}

TEST_CASE("a LibTorch that does not fit the driver") {
  MachineFacts machine = gpu_machine();
  CHECK(line_about("LibTorch", machine) ==
        "ok       LibTorch: LibTorch 2.11.0 for CUDA 13.0, which driver "
        "580.65.06 runs");
  machine.gpu.driver = "535.54";
  machine.gpu.cuda = 12020;
  CHECK(line_about("LibTorch", machine) ==
        "error    LibTorch: LibTorch 2.11.0 for CUDA 13.0, but driver 535.54 "
        "runs CUDA up to 12.2; install a newer driver, or a LibTorch for CUDA "
        "12");
  machine.all_reduce.cuda = 12080;
  CHECK_THAT(line_about("LibTorch", machine),
             Contains("ok ") && Contains("runs as another 12.x"));
  machine.all_reduce.cuda = 0;
  CHECK_THAT(line_about("LibTorch", machine), Contains("warning  "));
  machine.gpu = {};
  CHECK(line_about("LibTorch", machine) ==
        "ok       LibTorch: LibTorch 2.11.0 without CUDA");
}

TEST_CASE("LibTorch's GPUs and NCCL") {
  MachineFacts machine = gpu_machine();
  CHECK(line_about("NCCL", machine) == "ok       NCCL: NCCL 2.28.9");
  machine.all_reduce.nccl_built = 23003;
  CHECK_THAT(line_about("NCCL", machine),
             Contains("error    NCCL: NCCL 2.28.9 is loaded, but LibTorch was "
                      "built for 2.30.3; take the other one out"));
  machine.all_reduce.devices = 0;
  CHECK_THAT(line_about("CUDA", machine),
             Contains("error    CUDA: LibTorch sees 0 of 8 GPUs; see"));
  machine.environment["CUDA_VISIBLE_DEVICES"] = "5";
  machine.all_reduce.devices = 1;
  CHECK(line_about("CUDA", machine) ==
        "ok       CUDA: LibTorch sees 1 of 1 GPU");
  machine.environment["CUDA_VISIBLE_DEVICES"] = "";
  machine.all_reduce.devices = 0;
  CHECK(line_about("CUDA", machine).empty());
}

TEST_CASE("the all-reduce") {
  MachineFacts machine = sound_machine();
  CHECK(line_about("all-reduce", machine) ==
        "ok       all-reduce: 4 ranks over gloo: 16 MiB in 10.0 ms, 2.5 GB/s "
        "of bus bandwidth");
  machine.all_reduce.ranks = 1;
  CHECK(line_about("all-reduce", machine) ==
        "ok       all-reduce: 1 rank over gloo: 16 MiB in 10.0 ms");
  machine.all_reduce.error = "rank 1 has ended";
  CHECK_THAT(line_about("all-reduce", machine),
             Contains("error    all-reduce: rank 1 has ended; start `ddprun "));
  machine.all_reduce = {};
  machine.all_reduce.path = "/bin/x";
  CHECK_THAT(line_about("all-reduce", machine),
             Contains("warning  all-reduce: not tried") &&
                 Contains("there is no /bin/x; install ddp"));
  CHECK(line_about("LibTorch", machine).empty());
}

TEST_CASE("what ddprun-allreduce writes") {
  const auto facts = parse_all_reduce(
      "libtorch 2.11.0\ncuda 13000\nsomething else\nnccl 22809\nnccl_built "
      "x\nbackend nccl\nranks 8\nbytes 1000\nseconds 0.5\nerror a b\nerror c");
  CHECK(facts.libtorch == "2.11.0");
  CHECK(facts.cuda == 13000);
  CHECK(facts.nccl == 22809);
  CHECK(facts.nccl_built == 0);
  CHECK(facts.backend == "nccl");
  CHECK(facts.error == "a b");
  CHECK(bus_bandwidth(facts) == Approx(2 * 7 / 8.0 * 1000 / 0.5));
  CHECK(bus_bandwidth({}) == 0);
  CHECK(parse_all_reduce("").libtorch.empty());
}

TEST_CASE("CPUs against the number of workers") {
  MachineFacts machine = sound_machine();
  CHECK_THAT(line_about("CPUs", machine, {.workers = 65}),
             Contains("warning  CPUs: 65 workers on 64 CPUs"));
}

TEST_CASE("open files against the number of workers") {
  MachineFacts machine = sound_machine();
  machine.system.open_files = 1024;
  CHECK_THAT(line_about("open files", machine), Contains("ok "));
  const JobShape many{.workers = 256};
  CHECK(line_about("open files", machine, many) ==
        "error    open files: at most 1024 (hard 1048576), but rank 0 takes "
        "some 1088; run `ulimit -n 1048576` in the shell that starts ddprun");
  CHECK_THAT(line_about("open files", machine, {.workers = 4, .hosts = 64}),
             Contains("error "));
  machine.system.most_open_files = 1024;
  CHECK_THAT(line_about("open files", machine, many),
             Contains("takes some 1312; raise the hard limit"));
}

TEST_CASE("shared memory is NCCL's") {
  MachineFacts machine = gpu_machine();
  machine.system.shared_memory_bytes = 64 * kMebi;
  machine.system.free_shared_memory_bytes = 64 * kMebi;
  CHECK(line_about("shared memory", machine, {.workers = 8}) ==
        "warning  shared memory: 64 MiB of 64 MiB free in /dev/shm, where NCCL "
        "connects 8 workers; start the container with --shm-size=1024m or "
        "more, or mount a larger tmpfs there");
  CHECK_THAT(line_about("shared memory", machine, {.workers = 1}),
             Contains("ok "));
  machine.environment["CUDA_VISIBLE_DEVICES"] = "";
  CHECK_THAT(line_about("shared memory", machine), Contains("ok "));
  machine.environment.clear();
  machine.gpu = {};
  CHECK_THAT(line_about("shared memory", machine), Contains("ok "));
  machine.system.free_shared_memory_bytes.reset();
  CHECK_THAT(line_about("shared memory", machine), Contains("ok "));
  machine.gpu = gpu_machine().gpu;
  CHECK_THAT(line_about("shared memory", machine),
             Contains("warning  shared memory: there is no /dev/shm"));
}
