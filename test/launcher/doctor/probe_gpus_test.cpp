#include "launcher/doctor/probes.h"

#include "test/support/catch.h"

using namespace launcher;

TEST_CASE("lines of nvidia-smi about GPUs") {
  Gpu gpu;
  std::string driver;
  REQUIRE(
      parse_gpu("00000000:3B:00.0, GPU-5e3a, NVIDIA H200, 143771, 580.65.06",
                gpu,
                driver));
  CHECK(gpu.pci == "0000:3b:00.0");
  CHECK(gpu.uuid == "GPU-5e3a");
  CHECK(gpu.name == "NVIDIA H200");
  CHECK(gpu.memory_bytes == int64_t{143771} << 20);
  CHECK(driver == "580.65.06");
  REQUIRE(parse_gpu(
      "0000000F:01:00.0, GPU-1, NVIDIA GB10, [N/A], 580", gpu, driver));
  CHECK(gpu.pci == "000f:01:00.0");
  CHECK(gpu.memory_bytes == 0);
  for (const char* other : {"",
                            "No devices were found",
                            "Failed to initialize NVML: Unknown Error",
                            "pci.bus_id, uuid, name, memory.total, driver",
                            "00000000:3B:00.0, GPU-5e3a, NVIDIA H200, 143771",
                            ",,,,"}) {
    CAPTURE(other);
    CHECK(!parse_gpu(other, gpu, driver));
  }
}

TEST_CASE("the table of nvidia-smi topo -m") {
  const std::string table =
      "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
      "\x1b[4mGPU0\x1b[0m\t X \tNV18\tPXB\t0-31\t0\n"
      "GPU1\tNV18\t X \tSYS\t32-63\t1\n"
      "NIC0\tPXB\tSYS\t X \n"
      "\n"
      "Legend:\n\n  X    = Self\n";
  using Links = std::vector<std::vector<std::string>>;
  CHECK(parse_links(table, 2) == Links{{"X", "NV18"}, {"NV18", "X"}});
  CHECK(parse_links("no table", 1) == Links{{"?"}});
  CHECK(parse_links("GPU0\t X \nGPU7\t X \t X \n", 2) ==
        Links{{"?", "?"}, {"?", "?"}});
  CHECK(parse_links("", 0).empty());
}

TEST_CASE("the CUDA version of nvidia-smi -q") {
  CHECK(parse_cuda_version("\nDriver Version      : 535.104.05\n"
                           "CUDA Version        : 12.2\n\n"
                           "Attached GPUs       : 2\n") == 12020);
  CHECK(parse_cuda_version("CUDA UMD Version  : 13.1\n") == 13010);
  CHECK(parse_cuda_version("CUDA Version  : N/A\n") == 0);
  CHECK(parse_cuda_version("CUDA Version  : 99999999999.1\n") == 0);
  CHECK(parse_cuda_version("") == 0);
}
