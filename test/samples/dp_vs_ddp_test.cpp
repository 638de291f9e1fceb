#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <thread>

#include "samples/experiments/replicas/device_costs.h"
#include "samples/experiments/replicas/fork_store.h"
#include "samples/experiments/replicas/held_bytes.h"
#include "samples/experiments/replicas/memory_meter.h"
#include "samples/experiments/replicas/parameter_bytes.h"
#include "samples/experiments/spread.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using namespace samples;

namespace dp_vs_ddp_test {

dp::ReplicaTraffic traffic(int64_t state,
                           int64_t inputs,
                           int64_t outputs,
                           int64_t gradients) {
  return {torch::kCPU, state, inputs, outputs, gradients};
}

TEST_CASE("all traffic of DataParallel goes through the first device",
          "[dp_vs_ddp]") {
  const auto rows = dp_costs({traffic(0, 400, 40, 0),
                              traffic(3000, 300, 30, 2000),
                              traffic(5000, 200, 20, 6000)},
                             10);
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].inputs == 40);
  CHECK(rows[0].outputs == 4);
  CHECK(rows[0].sent == 330 + 520);
  CHECK(rows[0].received == 203 + 602);
  CHECK(rows[1].received == 330);
  CHECK(rows[1].sent == 203);
  CHECK(rows[2].device == 2);
  CHECK(rows[2].state == 500);
  CHECK(rows[2].gradients == 600);
  CHECK(rows[2].received == 520);
  CHECK(rows[2].sent == 602);
}

TEST_CASE("one replica sends nothing", "[dp_vs_ddp]") {
  const auto rows = dp_costs({traffic(0, 400, 40, 0)}, 10);
  CHECK(rows.at(0).sent == 0);
  CHECK(rows.at(0).received == 0);
}

TEST_CASE("bytes that a ring sends", "[dp_vs_ddp]") {
  CHECK(ring_bytes(1000, 1) == 0);
  CHECK(ring_bytes(1000, 2) == 1000);
  CHECK(ring_bytes(1000, 3) == 1333);
  CHECK(ring_bytes(1000, 4) == 1500);
  CHECK(ring_bytes(100, 3) == 133);
  CHECK(ring_bytes(101, 3) == 135);  // 134.67
}

TEST_CASE("costs as tables and as a file", "[dp_vs_ddp]") {
  DeviceCosts first;
  first.outputs = 3;
  first.sent = 12;
  first.parameters = 100;
  first.results = 23;
  DeviceCosts rank;
  rank.way = Way::ddp;
  rank.device = 1;
  rank.all_reduce = 104;
  rank.gradient_storage = 100;
  CHECK(traffic_table({first, rank}) ==
        "                 state      inputs     outputs   gradients  all_reduce"
        "        sent    received\n"
        "DP  0                0           0           3           0           0"
        "          12           0\n"
        "DDP 1                0           0           0           0         104"
        "           0           0\n");
  CHECK(memory_table({first}) ==
        "            parameters   gradients   optimizer activations     results"
        "         all\n"
        "DP  0              100           0           0           0          23"
        "         123\n");
  const ddp::test::TemporaryFolder folder;
  write_csv(folder / "costs.csv", {first, rank});
  CHECK(ddp::test::read_file(folder / "costs.csv") ==
        "way,device,state,inputs,outputs,gradients,all_reduce,sent,received,"
        "memory_parameters,memory_gradients,memory_optimizer,"
        "memory_activations,memory_results\n"
        "DP,0,0,0,3,0,0,12,0,100,0,0,0,23\n"
        "DDP,1,0,0,0,0,104,0,0,0,100,0,0,0\n");
  CHECK_THROWS_WITH(
      write_csv(folder / "none/costs.csv", {}),
      Catch::Contains("Expected to write " + (folder / "none/costs.csv")));
}

TEST_CASE("the middle half of numbers", "[dp_vs_ddp]") {
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

TEST_CASE("memory belongs to the scope that allocated it", "[dp_vs_ddp]") {
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

TEST_CASE("memory is counted on every thread with a scope", "[dp_vs_ddp]") {
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

TEST_CASE("a store to share with forked processes", "[dp_vs_ddp]") {
  const ForkStore shared;
  const auto here = shared.open();
  const auto there = shared.open();
  put(*here, "answer", 42);
  CHECK(get<int>(*there, "answer") == 42);
  CHECK_FALSE(there->check({"nothing"}));
  CHECK_THROWS_WITH(get<double>(*there, "answer"),
                    Catch::Contains("Expected 8 bytes for answer, but got 4"));
  const ForkStore other;
  CHECK_FALSE(other.open()->check({"answer"}));
}

TEST_CASE("the difference of parameters", "[dp_vs_ddp]") {
  const torch::NoGradGuard no_grad;
  torch::nn::Linear a(3, 2), b(3, 2);
  a->weight.fill_(2);
  a->bias.fill_(100);
  b->weight.fill_(2);
  b->bias.fill_(100);
  CHECK(parameter_bytes(*a).size() == 4 * (6 + 2));
  CHECK(greatest_difference(*a, parameter_bytes(*b)) == 0);
  a->bias[1] += 1;
  CHECK(greatest_difference(*a, parameter_bytes(*b)) == Approx(0.01));
  b->weight[1][2] = 4;
  CHECK(greatest_difference(*a, parameter_bytes(*b)) == Approx(0.5));
  CHECK_THROWS_WITH(
      greatest_difference(*a, std::vector<uint8_t>(31)),
      Catch::Contains("Expected 32 bytes of parameters, but got 31"));
}

TEST_CASE("bytes that a training holds", "[dp_vs_ddp]") {
  const double momentum = GENERATE(0.0, 0.9);
  torch::nn::Linear net(3, 2);
  net->register_buffer("mean", torch::zeros({5}, torch::kFloat64));
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(momentum));
  CHECK(state_bytes(*net) == 4 * 8 + 40);
  CHECK(gradient_bytes(*net) == 0);
  CHECK(state_bytes(optimizer) == 0);
  net->forward(torch::ones({1, 3})).sum().backward();
  optimizer.step();
  CHECK(gradient_bytes(*net) == 4 * 8);
  CHECK(state_bytes(optimizer) == (momentum > 0 ? 4 * 8 : 0));
}

}  // namespace dp_vs_ddp_test
