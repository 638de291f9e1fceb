#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "test/bench/dp_vs_ddp/device_costs.h"
#include "test/bench/dp_vs_ddp/digits_training.h"
#include "test/bench/dp_vs_ddp/module_bytes.h"
#include "test/bench/dp_vs_ddp/ranks.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using namespace ddp::bench;

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

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& parameter : module.parameters()) {
    count += parameter.numel();
  }
  return count;
}

TEST_CASE("the MLP has three layers", "[dp_vs_ddp]") {
  Mlp net({2, 3, 4}, 7, 5);
  CHECK(parameter_count(net) == (24 * 7 + 7) + (7 * 7 + 7) + (7 * 5 + 5));
  CHECK(net.forward(torch::rand({6, 2, 3, 4})).sizes() ==
        torch::IntArrayRef({6, 5}));
  const auto parameters = net.named_parameters();
  const torch::NoGradGuard no_grad;
  parameters["fc2.weight"].zero_();
  parameters["fc2.bias"].fill_(-1);  // relu cuts it off
  CHECK(torch::allclose(net.forward(torch::rand({1, 2, 3, 4}))[0],
                        parameters["fc3.bias"]));
}

}  // namespace dp_vs_ddp_test
