#include <torch/types.h>

#include "samples/support/device_list.h"
#include "samples/support/replica_traffic.h"
#include "test/support/catch.h"

namespace samples {
namespace {

using Devices = std::vector<c10::Device>;

const c10::Device kCpu(c10::kCPU);

c10::Device gpu(int number) {
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(number)};
}

TEST_CASE("devices by their names", "[device_list]") {
  CHECK(parse_devices({}, 4).empty());
  CHECK(parse_devices({"cpu", "cpu"}, 0) == Devices{kCpu, kCpu});
  CHECK(parse_devices({"cuda:1", "3", "cpu"}, 4) ==
        Devices{gpu(1), gpu(3), kCpu});
}

TEST_CASE("names that mean no device", "[device_list]") {
  for (const auto* name : {"gpu",
                           "",
                           "cuda",
                           "CPU",
                           "cpu:0",
                           "-1",
                           "cuda:",
                           "cuda:x",
                           "cuda:1x",
                           "cuda:-1",
                           "99999999999"}) {
    CHECK_THROWS_WITH(
        parse_devices({"cpu", name}, 4),
        Catch::Contains("Expected cpu, cuda:N or N in --devices, but got " +
                        std::string(name) + "."));
  }
}

TEST_CASE("GPUs that are not there", "[device_list]") {
  for (const auto* name : {"cuda:4", "4", "300"}) {
    CHECK_THROWS_WITH(
        parse_devices({name}, 4),
        Catch::Contains("Expected GPUs below 4 in --devices") &&
            Catch::Contains("but got " + std::string(name) + "."));
  }
  CHECK_THROWS_WITH(parse_devices({"cuda:0"}, 0), Catch::Contains("below 0"));
}

TEST_CASE("devices when none is named", "[device_list]") {
  CHECK(devices_or_gpus({}, 0).empty());
  CHECK(devices_or_gpus({}, 2) == Devices{gpu(0), gpu(1)});
  CHECK(devices_or_gpus({"1"}, 2) == Devices{gpu(1)});
  CHECK(devices_or_several({}, 0) == Devices{kCpu, kCpu, kCpu});
  CHECK(devices_or_several({}, 1) == Devices{kCpu, kCpu, kCpu});
  CHECK(devices_or_several({}, 2) == Devices{gpu(0), gpu(1)});
  CHECK(devices_or_several({"cpu"}, 2) == Devices{kCpu});
}

TEST_CASE("traffic of replicas as a sum and as a table", "[replica_traffic]") {
  CHECK(to_table({}).empty());
  const std::vector<dp::ReplicaTraffic> traffic{
      {kCpu, 0, 200, 300, 0}, {gpu(1), 10, 20, 30, 40}, {gpu(2), 1, 2, 3, 4}};
  const auto others = sum_of_others(traffic);
  CHECK(others.device == kCpu);
  CHECK(others.state_bytes == 11);
  CHECK(others.input_bytes == 22);
  CHECK(others.output_bytes == 33);
  CHECK(others.gradient_bytes == 44);
  CHECK(to_table({traffic[1]}) ==
        "bytes                      state to      inputs to   outputs from"
        " gradients from\n"
        "replica 0, cuda:1                10             20             30"
        "             40\n");
}

}  // namespace
}  // namespace samples
