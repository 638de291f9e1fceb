#include "launcher/doctor/doctor_report.h"

#include "launcher/base/text.h"
#include "launcher/doctor/finding.h"
#include "launcher/options/options.h"
#include "test/launcher/doctor/machines.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace launcher::test;

TEST_CASE("a line a finding") {
  CHECK(doctor_text({},
                    {all_well("memory", "1 GiB"),
                     warning("CPUs", "8 workers on 2 CPUs", "start fewer"),
                     failing("port", "it is taken", "give another")}) ==
        "ok       memory: 1 GiB\n"
        "warning  CPUs: 8 workers on 2 CPUs; start fewer\n"
        "error    port: it is taken; give another\n");
}

TEST_CASE("a finding has one line, whatever a variable holds") {
  const std::string text = doctor_text({}, {failing("Gloo", "a=b\nc", "no")});
  CHECK(text.find('\n') == text.size() - 1);
}

TEST_CASE("errors decide the exit code, warnings do not") {
  CHECK(exit_code_of({}) == 0);
  CHECK(exit_code_of({all_well("a", "b"), warning("c", "d", "e")}) == 0);
  CHECK(exit_code_of({failing("a", "b", "c"), all_well("d", "e")}) == 1);
}

TEST_CASE("an error of ddprun's is split where its advice begins") {
  const Finding finding = failing("x", "one; two, three; do that");
  CHECK(finding.text == "one; two, three");
  CHECK(finding.fix == "do that");
  CHECK(failing("x", "one").fix.empty());
}

TEST_CASE("the table of GPUs is nvidia-smi's") {
  CHECK(topology_table({}).empty());
  MachineFacts machine = gpu_machine();
  GpuFacts& gpu = machine.gpu;
  gpu.gpus.resize(3);
  gpu.gpus[2].numa_node = -1;
  gpu.gpus[2].cpus.clear();
  gpu.links = {{"X", "NV12", "SYS"}, {"NV12", "X", "PIX"}, {"SYS", "PIX", "X"}};
  const std::string table = topology_table(gpu);
  CHECK_THAT(table,
             Contains("      GPU0  GPU1  GPU2  CPUs  NUMA  PCI\n"
                      "GPU0  X     NV12  SYS   0-31  0     0000:0b:00.0\n"
                      "GPU1  NV12  X     PIX   0-31  0     0000:1b:00.0\n"
                      "GPU2  SYS   PIX   X     ?     ?     0000:2b:00.0\n"));
  CHECK(doctor_text(machine, {}) == "\n" + table);
}

TEST_CASE("numbers as people write them") {
  CHECK(bytes_text(0) == "0 bytes");
  CHECK(bytes_text(64 * kMebi) == "64 MiB");
  CHECK(bytes_text(kGibi + kGibi / 2) == "1.5 GiB");
  CHECK(bytes_text(141 * kGibi + kMebi) == "141 GiB");
  CHECK(cuda_text(12080) == "12.8");
  CHECK(nccl_text(23007) == "2.30.7");
  CHECK(count_text(1, "GPU") == "1 GPU");
  CHECK(list_text({}) == "");
  CHECK(list_text({"a", "b", "c"}) == "a, b and c");
}

TEST_CASE("the command line of the doctor") {
  const auto doctor = std::get<DoctorOptions>(
      parse_options({"--doctor", "--nproc-per-node=3"}, {}));
  CHECK(doctor.job.worker_count->number == 3);
  CHECK(doctor.job.program.empty());
  const auto with_program =
      std::get<DoctorOptions>(parse_options({"--doctor", "./train"}, {}));
  CHECK(with_program.job.program == std::vector<std::string>{"./train"});
  CHECK_THROWS_WITH(parse_options({"--doctor", "--docter"}, {}),
                    Contains("--docter"));
}
