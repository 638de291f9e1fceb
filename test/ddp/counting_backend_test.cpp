
#include <torch/types.h>

#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/local_ranks.h"

using ddp::test::CountingBackend;
using ddp::test::Group;
using ddp::test::Traffic;

namespace counting_backend_test {

int64_t sum_of(const Traffic& bytes) {
  return bytes.all_reduce + bytes.broadcast + bytes.all_gather +
         bytes.reduce_scatter + bytes.all_to_all + bytes.sent;
}

TEST_CASE("collectives are counted and still work", "[traffic]") {
  ddp::test::run_ranks(3, [](const Group& group) {
    CountingBackend counted(group);
    const int rank = group->getRank();
    std::vector<torch::Tensor> sum{torch::ones({10}) * rank};
    counted.allreduce(sum, {})->wait();
    TORCH_CHECK(torch::all(sum[0] == 3).item<bool>(), sum[0]);
    std::vector<torch::Tensor> first{torch::full({3}, rank + 5, torch::kInt64)};
    counted.broadcast(first, {})->wait();
    TORCH_CHECK(torch::all(first[0] == 5).item<bool>(), first[0]);
    std::vector<torch::Tensor> mine{torch::full({2}, rank, torch::kFloat32)};
    std::vector<std::vector<torch::Tensor>> all(1);
    for (int i = 0; i < 3; ++i) {
      all[0].push_back(torch::empty_like(mine[0]));
    }
    counted.allgather(all, mine, {})->wait();
    TORCH_CHECK(all[0][2][1].item<double>() == 2, all[0][2]);
    auto whole = torch::empty({6});
    counted._allgather_base(whole, mine[0], {})->wait();
    TORCH_CHECK(whole[4].item<double>() == 2, whole);
    auto part = torch::empty({2});
    counted._reduce_scatter_base(part, whole, {})->wait();
    TORCH_CHECK(torch::all(part == 3 * rank).item<bool>(), part);

    std::vector<int64_t> equal_parts;
    auto mixed = torch::empty({3});
    auto given = torch::full({3}, rank, torch::kFloat32);
    counted.alltoall_base(mixed, given, equal_parts, equal_parts, {})->wait();
    TORCH_CHECK(mixed.equal(torch::arange(3, torch::kFloat32)), mixed);

    const auto bytes = counted.take();
    TORCH_CHECK(bytes.all_to_all == 12, bytes.all_to_all);
    TORCH_CHECK(bytes.all_reduce == 40, bytes.all_reduce);
    TORCH_CHECK(bytes.broadcast == 24, bytes.broadcast);
    TORCH_CHECK(bytes.all_gather == 8 + 8, bytes.all_gather);
    TORCH_CHECK(bytes.reduce_scatter == 24, bytes.reduce_scatter);
    TORCH_CHECK(bytes.sent == 0, bytes.sent);
    TORCH_CHECK(sum_of(counted.take()) == 0);

    std::vector<torch::Tensor> rows{
        torch::sparse_coo_tensor(
            torch::tensor({{int64_t{0}, int64_t{2}}}), torch::ones({2}), {3})
            .coalesce()};
    counted.allreduce(rows, {})->wait();
    const int64_t indices_and_values = 2 * 8 + 2 * 4;
    TORCH_CHECK(counted.take().all_reduce == indices_and_values);
  });
}

TEST_CASE("messages are counted where they are sent", "[traffic]") {
  ddp::test::run_ranks(2, [](const Group& group) {
    CountingBackend counted(group);
    std::vector<torch::Tensor> data{torch::full({5}, group->getRank() + 1.0f)};
    if (group->getRank() == 0) {
      counted.send(data, 1, 0)->wait();
    } else {
      counted.recv(data, 0, 0)->wait();
      TORCH_CHECK(torch::all(data[0] == 1).item<bool>(), data[0]);
    }
    const auto bytes = counted.take();
    TORCH_CHECK(bytes.sent == (group->getRank() == 0 ? 20 : 0), bytes.sent);
    TORCH_CHECK(sum_of(bytes) == bytes.sent);
  });
}

}  // namespace counting_backend_test
