#include "samples/experiments/ring.h"

#include <numeric>

#include "samples/support/socket_bytes.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"

using namespace samples;
using ddp::test::Group;
using ddp::test::run_ranks;

namespace ring_allreduce_test {

// Rank r has (r + 1) * (i + 1) at place i. The sum over p ranks is p(p + 1)/2 *
// (i + 1), which float32 represents exactly.
torch::Tensor ramp(int64_t numel, int64_t factor, torch::ScalarType dtype) {
  return (torch::arange(1, numel + 1) * factor).to(dtype);
}

TEST_CASE("pieces are equal up to one", "[ring]") {
  CHECK(split_evenly(10, 4) == std::vector<int64_t>{3, 3, 2, 2});
  CHECK(split_evenly(8, 4) == std::vector<int64_t>{2, 2, 2, 2});
  CHECK(split_evenly(2, 4) == std::vector<int64_t>{1, 1, 0, 0});
  CHECK(split_evenly(0, 3) == std::vector<int64_t>{0, 0, 0});
}

TEST_CASE("the ring sends 2(p - 1)/p of the data", "[ring]") {
  for (const int64_t p : {2, 3, 4, 5}) {
    const int64_t n = 60;  // a multiple of each
    for (int64_t rank = 0; rank < p; ++rank) {
      CHECK(ring_elements_sent(n, p, rank) * p == 2 * (p - 1) * n);
    }
  }
  CHECK(ring_elements_sent(60, 1, 0) == 0);
  // 7 = 3 + 2 + 2: rank 0 does not send chunks 1 and 2, rank 1 not 2 and 0.
  CHECK(ring_elements_sent(7, 3, 0) == 14 - 2 - 2);
  CHECK(ring_elements_sent(7, 3, 1) == 14 - 2 - 3);
  CHECK(ring_elements_sent(7, 3, 2) == 14 - 3 - 2);
}

TEST_CASE("both all-reduces sum, and send what they should", "[ring]") {
  const int ranks = GENERATE(1, 2, 3, 4, 5);
  const int64_t numel = GENERATE(0, 1, 3, 60, 1'003);
  const auto dtype = GENERATE(torch::kFloat32, torch::kInt64);
  CAPTURE(ranks, numel, dtype);
  std::vector<int64_t> ring(static_cast<size_t>(ranks)), naive(ring);
  run_ranks(ranks, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group->getRank());
    const auto size = static_cast<int64_t>(torch::elementSize(dtype));
    const auto input = ramp(numel, group->getRank() + 1, dtype);
    const auto expected = ramp(numel, ranks * (ranks + 1) / 2, dtype);

    auto tensor = input.clone();
    ring[rank] = ring_allreduce(tensor, *group);
    TORCH_CHECK(torch::equal(tensor, expected), tensor);
    TORCH_CHECK(ring[rank] ==
                size * ring_elements_sent(numel, ranks, group->getRank()));

    tensor = input.clone();
    naive[rank] = naive_allreduce(tensor, *group);
    TORCH_CHECK(torch::equal(tensor, expected), tensor);
    TORCH_CHECK(naive[rank] == size * (ranks - 1) * numel);
  });
  const auto bytes = numel * static_cast<int64_t>(torch::elementSize(dtype));
  CHECK(std::accumulate(ring.begin(), ring.end(), int64_t{0}) ==
        2 * (ranks - 1) * bytes);
}

TEST_CASE("data that no socket buffers goes round, too", "[ring]") {
  const int64_t numel = 8 * 1024 * 1024 + 1;  // 32 MiB, odd
  run_ranks(3, [&](const Group& group) {
    const auto mine = static_cast<float>(group->getRank() + 1);
    auto tensor = torch::full({numel}, mine);
    ring_allreduce(tensor, *group);
    TORCH_CHECK(torch::all(tensor == 6.0F).item<bool>());
    tensor.fill_(mine);
    naive_allreduce(tensor, *group);
    TORCH_CHECK(torch::all(tensor == 6.0F).item<bool>());
  });
}

TEST_CASE("every rank gets the same bits, in any shape", "[ring]") {
  const int ranks = 4;
  std::vector<torch::Tensor> ring(ranks), naive(ranks), inputs(ranks);
  run_ranks(ranks, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group->getRank());
    const auto index = torch::arange(91, torch::kFloat32);
    inputs[rank] = torch::sin(index * (1.0 + group->getRank())).view({7, 13});
    ring[rank] = inputs[rank].clone().requires_grad_();
    ring_allreduce(ring[rank], *group);
    naive[rank] = inputs[rank].clone();
    naive_allreduce(naive[rank], *group);
  });
  const auto sum = torch::stack(inputs).to(torch::kFloat64).sum(0);
  for (size_t rank = 0; rank < ranks; ++rank) {
    CHECK(torch::equal(ring[rank], ring[0]));
    CHECK(torch::equal(naive[rank], naive[0]));
    CHECK(torch::allclose(ring[rank].to(torch::kFloat64), sum, 1e-6, 1e-6));
    CHECK(torch::allclose(naive[rank].to(torch::kFloat64), sum, 1e-6, 1e-6));
  }
}

TEST_CASE("a tensor with gaps is refused", "[ring]") {
  const auto errors = ddp::test::try_ranks(2, [](const Group& group) {
    auto tensor = torch::ones({4, 4}).t();
    ring_allreduce(tensor, *group);
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Catch::Contains("Expected a contiguous tensor"));
  }
}

TEST_CASE("the kernel counts what sockets send", "[ring]") {
  const int64_t before = socket_bytes_sent();
  run_ranks(2, [&](const Group& group) {
    std::vector<torch::Tensor> data{torch::zeros({100'000})};
    group->allreduce(data, {})->wait();
    std::vector<torch::Tensor> done{torch::zeros({1})};
    group->allreduce(done, {})->wait();  // keeps connections open
    if (group->getRank() == 0) {
      TORCH_CHECK(socket_bytes_sent() - before >= 400'000);
    }
    group->allreduce(done, {})->wait();
  });
}

}  // namespace ring_allreduce_test
