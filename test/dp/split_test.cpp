// Functions that need no module: rows, chunks, aggregates, devices.
#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include "dp/aggregate.h"
#include "dp/data_parallel/detail/devices.h"
#include "dp/data_parallel/detail/scatter.h"
#include "test/support/catch.h"

namespace dp {
namespace split_test {

using detail::Part;
using detail::scatter;
using detail::split_rows;
using Rows = std::vector<int64_t>;
using torch::Tensor;

std::vector<torch::Device> cpus(size_t count) {
  return std::vector<torch::Device>(count, torch::kCPU);
}

TEST_CASE("equal shares are those of chunk", "[dp]") {
  for (int64_t rows = 0; rows <= 40; ++rows) {
    for (int64_t devices = 1; devices <= 9; ++devices) {
      Rows expected;
      for (const auto& chunk : torch::empty({rows}).chunk(devices)) {
        expected.push_back(chunk.size(0));
      }
      expected.resize(static_cast<size_t>(devices));
      CHECK(split_rows(rows, static_cast<size_t>(devices), {}) == expected);
    }
  }
}

TEST_CASE("given sizes", "[dp]") {
  CHECK(split_rows(7, 3, {1, 4, 2}) == Rows{1, 4, 2});
  CHECK_THROWS_WITH(split_rows(8, 3, {1, 4, 2}),
                    Catch::Contains("Expected a batch of 7 rows for "
                                    "chunk_sizes 1 + 4 + 2, but got 8"));
}

TEST_CASE("chunk sizes that do not fit", "[dp]") {
  const auto error = [](const Rows& sizes, size_t devices) {
    try {
      detail::check_chunk_sizes(sizes, devices);
    } catch (const c10::Error& caught) {
      return std::string(caught.what_without_backtrace());
    }
    return std::string();
  };
  CHECK(error({}, 2).empty());
  CHECK(error({0, 3}, 2).empty());
  CHECK(error({1, 2}, 3) ==
        "Expected one of chunk_sizes for each of 3 devices, but got 2: 1, 2");
  CHECK(error({1, 2}, 0) ==
        "Expected one of chunk_sizes for each of 0 devices, but got 2: 1, 2");
  CHECK(error({3, -1}, 2) ==
        "Expected chunk_sizes of 0 or more, but got 3, -1");
  CHECK(error({0, 0}, 2) ==
        "Expected chunk_sizes that are not all 0, but got 0, 0");
}

TEST_CASE("tensors are split alike", "[dp]") {
  const auto a = torch::arange(10).view({5, 2});
  const auto b = torch::arange(5);
  const auto parts = scatter({a, Tensor(), b}, cpus(3), {}, 0);
  REQUIRE(parts.size() == 3);
  const auto rows_of_a = a.split_with_sizes({2, 2, 1});
  const auto rows_of_b = b.split_with_sizes({2, 2, 1});
  for (size_t i = 0; i < 3; ++i) {
    CHECK(parts[i].replica == i);
    CHECK(parts[i].samples == rows_of_a[i].size(0));
    CHECK(parts[i].tensors[0].equal(rows_of_a[i]));
    CHECK_FALSE(parts[i].tensors[1].defined());
    CHECK(parts[i].tensors[2].equal(rows_of_b[i]));
  }
}

TEST_CASE("devices without rows take no part", "[dp]") {
  const auto replicas = [](const std::vector<Part>& parts) {
    std::vector<size_t> result;
    for (const auto& part : parts) {
      result.push_back(part.replica);
    }
    return result;
  };
  using List = std::vector<size_t>;
  const auto rows = [](int64_t n) {
    return std::vector<Tensor>{torch::ones({n, 3})};
  };
  CHECK(replicas(scatter(rows(2), cpus(4), {}, 0)) == List{0, 1});
  CHECK(replicas(scatter(rows(6), cpus(4), {}, 0)) == List{0, 1, 2});
  CHECK(replicas(scatter(rows(3), cpus(3), {0, 1, 2}, 0)) == List{1, 2});
  // Without rows to split, one replica gets the input.
  const auto none = scatter(rows(0), cpus(4), {}, 0);
  REQUIRE(replicas(none) == List{0});
  CHECK(none[0].tensors[0].sizes() == at::IntArrayRef{0, 3});
  CHECK(replicas(scatter({}, cpus(4), {}, 0)) == List{0});
  CHECK(replicas(scatter({Tensor()}, cpus(4), {}, 0)) == List{0});
}

TEST_CASE("another dimension", "[dp]") {
  const auto tensor = torch::arange(12).view({2, 6});
  const int64_t dim = GENERATE(1, -1);
  const auto parts = scatter({tensor}, cpus(4), {}, dim);
  REQUIRE(parts.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(parts[i].tensors[0].equal(
        tensor.narrow(1, static_cast<int64_t>(2 * i), 2)));
  }
  // Negative dimensions count from the end of each tensor.
  const auto mixed =
      scatter({torch::ones({4, 6}), torch::ones({6})}, cpus(2), {}, -1);
  CHECK(mixed[1].tensors[0].sizes() == at::IntArrayRef{4, 3});
  CHECK(mixed[1].tensors[1].sizes() == at::IntArrayRef{3});
}

TEST_CASE("what cannot be split", "[dp]") {
  CHECK_THROWS_WITH(
      scatter({torch::tensor(3.0)}, cpus(2), {}, 0),
      Catch::Contains("Expected tensors with a dimension 0 to split, but got "
                      "one of size []"));
  CHECK_THROWS_WITH(
      scatter({torch::ones({3})}, cpus(2), {}, 1),
      Catch::Contains("with a dimension 1 to split, but got one of size [3]"));
  CHECK_THROWS_WITH(
      scatter({torch::ones({8, 3}), torch::ones({2})}, cpus(3), {}, 0),
      Catch::Contains("Expected tensors of one size in dimension 0, to be "
                      "split alike, but got one of size [8, 3] and one of size "
                      "[2];"));
  // Both tensors would give two chunks.
  CHECK_THROWS_WITH(
      scatter({torch::ones({8}), torch::ones({6})}, cpus(2), {}, 0),
      Catch::Contains("but got one of size [8] and one of size [6];") &&
          Catch::Contains("in a struct without tensor_fields, whose tensors "
                          "stay on their device: forward moves them"));
  CHECK_THROWS_WITH(
      scatter({torch::ones({8}), torch::ones({0})}, cpus(3), {}, 0),
      Catch::Contains("but got one of size [8] and one of size [0];"));
}

TEST_CASE("chunks are differentiable twice", "[dp]") {
  const auto x = torch::randn({5, 2}, torch::requires_grad());
  const auto parts = scatter({x}, cpus(2), {}, 0);
  const auto y =
      parts[0].tensors[0].pow(3).sum() + 2 * parts[1].tensors[0].pow(3).sum();
  const auto first = torch::autograd::grad({y}, {x}, {}, {}, true)[0];
  const auto second = torch::autograd::grad({first.sum()}, {x})[0];
  const auto factor = torch::tensor({1., 1., 1., 2., 2.}).unsqueeze(1);
  CHECK(first.allclose(3 * factor * x.pow(2)));
  CHECK(second.allclose(6 * factor * x));
}

TEST_CASE("aggregates", "[dp]") {
  const auto a = torch::tensor({{1., 2.}});
  const auto b = torch::tensor({{5., 10.}});
  const Parts parts{{a, b}, {1, 3}, 0};
  CHECK(concatenate(parts).equal(torch::tensor({{1., 2.}, {5., 10.}})));
  CHECK(concatenate({{a, b}, {1, 3}, -1})
            .equal(torch::tensor({{1., 2., 5., 10.}})));
  CHECK(sum(parts).equal(torch::tensor({{6., 12.}})));
  CHECK(mean(parts).equal(torch::tensor({{4., 8.}})));
  CHECK(mean({{a}, {0}, 0}).equal(a));
  CHECK(concatenate({{torch::ones({2, 3}), torch::ones({1, 3})}, {2, 1}, 0})
            .sizes() == at::IntArrayRef{3, 3});
}

TEST_CASE("what cannot be aggregated", "[dp]") {
  const Parts parts{{torch::ones({2, 3}), torch::ones({2, 4})}, {2, 2}, 0};
  CHECK_THROWS_WITH(
      concatenate(parts),
      Catch::Contains(
          "Expected replicas to return tensors whose sizes differ "
          "in dimension 0 alone, to be concatenated, but got [2, 3] "
          "first and [2, 4] from part 1"));
  CHECK_THROWS_WITH(sum(parts), Catch::Contains("[2, 4] from part 1"));
  CHECK_THROWS_WITH(mean(parts), Catch::Contains("[2, 4] from part 1"));
  CHECK_THROWS_WITH(
      concatenate({{torch::tensor(1.), torch::ones({1})}, {2, 2}, 0}),
      Catch::Contains("a dimension 0 to be concatenated along, but got one of "
                      "size []"));
  CHECK_THROWS_WITH(
      concatenate({{torch::ones({1}), torch::tensor(1.)}, {2, 2}, 0}),
      Catch::Contains("[] from part 1"));
  CHECK_THROWS_WITH(
      concatenate({{torch::ones({1}), torch::ones({1})}, {2, 2}, 1}),
      Catch::Contains("a dimension 1 to be concatenated along"));
  CHECK_THROWS_WITH(
      mean({{torch::ones({1}, torch::kLong), torch::ones({1}, torch::kLong)},
            {2, 2},
            0}),
      Catch::Contains("floating point"));
}

/// Describes two GPUs to the functions under test; the second is current.
detail::DevicesOfType two_gpus(c10::DeviceType type) {
  return {type == c10::kCPU ? 1 : type == c10::kCUDA ? 2 : 0, 1};
}

detail::DevicesOfType no_gpu(c10::DeviceType type) {
  return {type == c10::kCPU ? 1 : 0, 0};
}

TEST_CASE("devices", "[dp]") {
  using detail::resolve_devices;
  using Devices = std::vector<c10::Device>;
  const c10::Device gpu_0(c10::kCUDA, 0);
  const c10::Device gpu_1(c10::kCUDA, 1);
  CHECK(resolve_devices({}, two_gpus) == Devices{gpu_0, gpu_1});
  CHECK(resolve_devices({}, no_gpu).empty());
  CHECK(resolve_devices({gpu_1, gpu_0}, two_gpus) == Devices{gpu_1, gpu_0});
  // A device without an index is the current one.
  CHECK(resolve_devices({c10::Device(c10::kCUDA)}, two_gpus) == Devices{gpu_1});
  CHECK(resolve_devices(
            {c10::Device(c10::kCPU, 0), gpu_1, c10::Device(c10::kCPU)},
            two_gpus) ==
        Devices{c10::Device(c10::kCPU), gpu_1, c10::Device(c10::kCPU)});
  CHECK_THROWS_WITH(
      resolve_devices({gpu_0, c10::Device(c10::kCUDA, 2)}, two_gpus),
      Catch::Contains("Expected a device that is there, but got cuda:2, and "
                      "LibTorch sees 2 of that type"));
  CHECK_THROWS_WITH(
      resolve_devices({gpu_0}, no_gpu),
      Catch::Contains("but got cuda:0, and LibTorch sees 0 of that type"));
  CHECK_THROWS_WITH(
      resolve_devices({gpu_1, gpu_0, gpu_1}, two_gpus),
      Catch::Contains("Expected different devices, but got cuda:1 twice"));
  CHECK_THROWS_WITH(resolve_devices({c10::Device(c10::kCUDA), gpu_1}, two_gpus),
                    Catch::Contains("cuda:1 twice"));
  CHECK(detail::look_up_devices(c10::kCPU).count == 1);
  CHECK(detail::look_up_devices(c10::kCUDA).count ==
        static_cast<int64_t>(torch::cuda::device_count()));
}

TEST_CASE("an imbalance between GPUs", "[dp]") {
  using detail::warn_of_imbalance;
  const auto gpus = [](std::vector<std::pair<int64_t, int64_t>> capacities) {
    std::vector<detail::GpuCapacity> result;
    for (const auto& [memory, processors] : capacities) {
      const auto index = static_cast<c10::DeviceIndex>(result.size());
      result.push_back({c10::Device(c10::kCUDA, index), memory, processors});
    }
    return result;
  };
  CHECK_FALSE(warn_of_imbalance({}));
  CHECK_FALSE(warn_of_imbalance(gpus({{16, 80}})));
  CHECK_FALSE(warn_of_imbalance(gpus({{16, 80}, {12, 60}})));
  CHECK_THAT(
      *warn_of_imbalance(gpus({{16, 80}, {100, 80}, {11, 10}})),
      Catch::Contains("cuda:2 has less than 75% of the memory of cuda:1"));
  CHECK_THAT(*warn_of_imbalance(gpus({{16, 59}, {16, 80}})),
             Catch::Contains(
                 "cuda:0 has less than 75% of the multiprocessors of cuda:1"));
}

}  // namespace split_test
}  // namespace dp
