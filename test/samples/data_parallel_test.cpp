#include <dp/data_parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cmath>
#include <thread>

#include "samples/support/devices.h"
#include "samples/support/first_device_memory.h"
#include "samples/support/gradients.h"
#include "samples/support/memory_meter.h"
#include "samples/support/replica_traffic.h"
#include "samples/support/spread.h"
#include "test/support/catch.h"

namespace samples {
namespace data_parallel_test {

using Devices = std::vector<c10::Device>;

const c10::Device kCpu(c10::kCPU);

c10::Device gpu(int number) {
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(number)};
}

TEST_CASE("devices by their names", "[device_list]") {
  CHECK(devices_or_several({"cpu", "cpu"}, 0) == Devices{kCpu, kCpu});
  CHECK(devices_or_several({"cuda:1", "3", "cpu"}, 4) ==
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
        devices_or_several({"cpu", name}, 4),
        Catch::Contains("Expected cpu, cuda:N or N in --devices, but got " +
                        std::string(name) + "."));
  }
}

TEST_CASE("GPUs that are not there", "[device_list]") {
  for (const auto* name : {"cuda:4", "4", "300"}) {
    CHECK_THROWS_WITH(
        devices_or_several({name}, 4),
        Catch::Contains("Expected GPUs below 4 in --devices") &&
            Catch::Contains("but got " + std::string(name) + "."));
  }
  CHECK_THROWS_WITH(devices_or_several({"cuda:0"}, 0),
                    Catch::Contains("below 0"));
}

TEST_CASE("devices when none is named", "[device_list]") {
  CHECK(devices_or_several({"1"}, 2) == Devices{gpu(1)});
  CHECK(devices_or_several({}, 0) == Devices{kCpu, kCpu, kCpu});
  CHECK(devices_or_several({}, 1) == Devices{kCpu, kCpu, kCpu});
  CHECK(devices_or_several({}, 2) == Devices{gpu(0), gpu(1)});
  CHECK(devices_or_several({"cpu"}, 2) == Devices{kCpu});
}

TEST_CASE("traffic of replicas as a sum", "[replica_traffic]") {
  const std::vector<dp::ReplicaTraffic> traffic{
      {kCpu, 0, 200, 300, 0}, {gpu(1), 10, 20, 30, 40}, {gpu(2), 1, 2, 3, 4}};
  const auto others = sum_of_others(traffic);
  CHECK(others.device == kCpu);
  CHECK(others.state_bytes == 11);
  CHECK(others.input_bytes == 22);
  CHECK(others.output_bytes == 33);
  CHECK(others.gradient_bytes == 44);
}

TEST_CASE("gradients are copied, in order", "[gradients]") {
  torch::nn::Linear net(2, 1);
  CHECK_THROWS_WITH(
      copy_gradients(*net),
      Catch::Contains("Expected a gradient of weight, but got none."));
  net(torch::tensor({{2.0, 3.0}})).sum().backward();
  const auto gradients = copy_gradients(*net);
  net->zero_grad(/*set_to_none=*/false);
  REQUIRE(gradients.size() == 2);
  CHECK(torch::equal(gradients[0], torch::tensor({{2.0F, 3.0F}})));
  CHECK(torch::equal(gradients[1], torch::tensor({1.0F})));
}

TEST_CASE("how far gradients are apart", "[gradients]") {
  const std::vector<torch::Tensor> a{torch::tensor({1.0, -8.0}),
                                     torch::tensor({{3.0}})};
  auto b = a;
  CHECK(relative_difference(b, a) == 0);
  b[1] = torch::tensor({{5.0}});
  CHECK(relative_difference(b, a) == 0.25);  // 2 of 8
  b[0] = torch::tensor({1.0, std::nan("")});
  CHECK(std::isnan(relative_difference(b, a)));
}

torch::Tensor take(int64_t bytes) {
  return torch::empty({bytes}, torch::kUInt8);
}

TEST_CASE("memory that tensors take at most", "[first_device_memory]") {
  FirstDeviceMemory memory(kCpu);
  CHECK_FALSE(memory.sees_backward());
  const auto stays = take(5000);
  memory.reset();
  CHECK(memory.peak() == 0);
  {
    const auto one = take(1000);
    take(200);
    take(300);
  }
  CHECK(memory.peak() == 1300);
  const auto more = take(400);
  CHECK(memory.peak() == 1300);
  memory.reset();
  CHECK(memory.peak() == 0);
  const auto again = take(70);
  CHECK(memory.peak() == 70);
}

TEST_CASE("memory of another replica does not count", "[first_device_memory]") {
  FirstDeviceMemory memory(kCpu);
  memory.reset();
  {
    const auto scope = memory.scope(/*is_first=*/true);
    take(100);
  }
  {
    const auto scope = memory.scope(/*is_first=*/false);
    take(3000);
  }
  CHECK(memory.peak() == 100);
  take(4000);
  CHECK(memory.peak() == 4000);
}

/// Returns a copy of its rows.
struct CopyNet : torch::nn::Module {
  CopyNet(const FirstDeviceMemory& memory, bool is_first)
      : memory(memory), is_first(is_first) {}
  torch::Tensor forward(const torch::Tensor& rows) {
    const auto scope = memory.scope(is_first);
    return rows.clone();
  }
  const FirstDeviceMemory& memory;
  bool is_first;
};

TEST_CASE("of replicas the first one's memory counts, and what is gathered",
          "[first_device_memory]") {
  const int64_t first = GENERATE(1, 5, 6);
  const auto rows = torch::ones({6, 1000}, torch::kUInt8);
  FirstDeviceMemory memory(kCpu);
  dp::DataParallel model(std::make_shared<CopyNet>(memory, true),
                         dp::DataParallelOptions()
                             .devices({kCpu, kCpu})
                             .chunk_sizes({first, 6 - first})
                             .make_replica([&] {
                               return std::make_shared<CopyNet>(memory, false);
                             }));
  model->forward(rows);
  memory.reset();
  model->forward(rows);
  // A single part is the result without a gather. The wrapper needs a few
  // bytes.
  const int64_t expected = 1000 * first + (first < 6 ? 6000 : 0);
  CHECK(memory.peak() >= expected);
  CHECK(memory.peak() < expected + 500);
}

TEST_CASE("a meter has a peak for each owner", "[memory_meter]") {
  MemoryMeter meter(2);
  using Bytes = std::vector<int64_t>;
  const MemoryMeter::Scope scope(meter, 0);
  take(10);  // not counted before start()
  meter.start();
  take(300);
  take(20);
  torch::Tensor kept;
  {
    const MemoryMeter::Scope inner(meter, 1);
    kept = take(40);
    take(5);
  }
  CHECK(meter.peak() == Bytes{300, 45});
  meter.reset_peak();
  CHECK(meter.peak() == Bytes{0, 40});
  meter.move(kept, 0);
  CHECK(meter.peak() == Bytes{40, 40});
  meter.start();
  CHECK(meter.peak() == Bytes{0, 0});
}

TEST_CASE("memory belongs to the scope that allocated it", "[memory_meter]") {
  MemoryMeter meter(2);
  meter.start();
  auto unseen = torch::empty({1000});
  torch::Tensor a, b, c;
  {
    const MemoryMeter::Scope outer(meter, 0);
    a = torch::empty({10});
    {
      const MemoryMeter::Scope inner(meter, 1);
      b = torch::empty({100});
      c = torch::empty({7}, torch::kUInt8);
    }
    CHECK(meter.live() == std::vector<int64_t>{40, 407});
    b = torch::Tensor();  // in another scope than its allocation
    CHECK(meter.live() == std::vector<int64_t>{40, 7});
    meter.move(c, 0);
    meter.move(unseen, 0);
    CHECK(meter.live() == std::vector<int64_t>{47, 0});
    c = torch::Tensor();
    CHECK(meter.live() == std::vector<int64_t>{40, 0});
  }
  meter.stop();
  {
    const MemoryMeter::Scope scope(meter, 1);
    b = torch::empty({100});
  }
  CHECK(meter.live() == std::vector<int64_t>{40, 0});
  meter.start();
  CHECK(meter.live() == std::vector<int64_t>{0, 0});
}

TEST_CASE("memory is counted on every thread with a scope", "[memory_meter]") {
  MemoryMeter meter(3);
  meter.start();
  std::vector<torch::Tensor> kept(3);
  std::vector<std::thread> threads;
  for (size_t owner = 0; owner < kept.size(); ++owner) {
    threads.emplace_back([&, owner] {
      const MemoryMeter::Scope scope(meter, owner);
      for (int i = 0; i < 100; ++i) {
        kept[owner] = torch::empty({static_cast<int64_t>(owner) + 1});
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(meter.live() == std::vector<int64_t>{4, 8, 12});
}

TEST_CASE("the middle half of numbers", "[spread]") {
  const auto five = spread({5, 1, 4, 2, 3});
  CHECK(five.low == 2);
  CHECK(five.median == 3);
  CHECK(five.high == 4);
  const auto two = spread({10, 20});
  CHECK(two.low == 12.5);
  CHECK(two.median == 15);
  CHECK(two.high == 17.5);
  CHECK(spread({7}).low == 7);
  CHECK(spread({7}).high == 7);
  CHECK_THROWS_WITH(spread({}), Catch::Contains("Expected numbers"));
  CHECK(to_text(two, 1) == "15.0 [12.5, 17.5]");
}

}  // namespace data_parallel_test
}  // namespace samples
