#include "ddp/collectives.h"

#include <algorithm>

#include <torch/data/datasets/base.h>
#include <torch/types.h>

#include "ddp/data/distributed_sampler.h"
#include "ddp/distributed_data_parallel.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace collectives_test {

using Catch::Contains;
using test::Group;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// Dtypes under test. Gloo does not support all of them.
const std::vector<torch::Dtype> kDtypes{torch::kFloat,
                                        torch::kBFloat16,
                                        torch::kBool,
                                        torch::kShort,
                                        torch::kComplexFloat};

/// Values that differ between ranks, in any dtype.
Tensor values(int rank, at::IntArrayRef sizes, torch::Dtype dtype) {
  const auto numel = c10::multiply_integers(sizes);
  return torch::arange(rank, rank + numel).remainder(7).view(sizes).to(dtype);
}

void check_same(const Tensor& got, const Tensor& expected) {
  TORCH_CHECK(got.scalar_type() == expected.scalar_type() &&
                  got.equal(expected) && !got.requires_grad(),
              "Expected ",
              expected,
              ", but got ",
              got);
}

TEST_CASE("a mean of halves does not overflow", "[collectives]") {
  run_ranks(2, [](const Group& group) {
    const auto large = torch::full({3}, 60000.0, torch::kHalf);
    check_same(reduce_tensor(large, Reduction::mean, group), large);
  });
}

TEST_CASE("dtypes without a reduction are errors", "[collectives][errors]") {
  const auto errors_of = [](torch::Dtype dtype, Reduction reduction) {
    return try_ranks(2, [&](const Group& group) {
      reduce_tensor(torch::ones({2}, dtype), reduction, group);
    });
  };
  for (const auto& error : errors_of(torch::kBool, Reduction::sum)) {
    CHECK_THAT(error, Contains("Expected numbers for Reduction::sum, but got"));
  }
  CHECK(errors_of(torch::kBool, Reduction::max)[0].empty());
  for (const auto& error : errors_of(torch::kShort, Reduction::sum)) {
    CHECK_THAT(error, Contains("a dtype that Gloo can combine, but got Short"));
  }
  CHECK(errors_of(torch::kComplexFloat, Reduction::sum)[0].empty());
  CHECK_THAT(errors_of(torch::kComplexFloat, Reduction::max)[0],
             Contains("a dtype that Gloo can combine"));
}

TEST_CASE("a tensor of one rank goes to all", "[collectives]") {
  const int size = GENERATE(1, 2, 3, 4);
  run_ranks(size, [&](const Group& group) {
    for (int from = 0; from < size; ++from) {
      for (const auto dtype : kDtypes) {
        for (const std::vector<int64_t>& sizes :
             {std::vector<int64_t>{}, {5}, {2, 3}, {0, 4}}) {
          const bool sends = group->getRank() == from;
          const auto mine = values(group->getRank(), sizes, dtype);
          const auto got = broadcast(sends ? mine : Tensor(), from, group);
          check_same(got, values(from, sizes, dtype));
          TORCH_CHECK(!sends || got.numel() == 0 ||
                      got.data_ptr() != mine.data_ptr());
        }
      }
      // A non-contiguous tensor with a grad history. The tensors of other ranks
      // are ignored.
      const auto x = torch::arange(6.0).view({2, 3}).requires_grad_();
      const auto mine = group->getRank() == from ? (x * 2).t() : torch::ones(9);
      check_same(broadcast(mine, from, group), (x.detach() * 2).t());
    }
  });
}

TEST_CASE("errors of broadcast", "[collectives][errors]") {
  for (const auto& error : try_ranks(3, [](const Group& group) {
         const auto mine = group->getRank() == 1 ? Tensor() : torch::ones({2});
         broadcast(mine, 1, group);
       })) {
    CHECK_THAT(error,
               Contains("broadcast of rank 1's tensor: Expected a dense tensor "
                        "to send, but got an undefined tensor"));
  }
  for (const auto& error : try_ranks(2, [](const Group& group) {
         broadcast(torch::ones({2}).to_sparse(), 0, group);
       })) {
    CHECK_THAT(error, Contains("Expected a dense tensor"));
  }
  CHECK_THROWS_WITH(broadcast(torch::ones({1}), 1),
                    Contains("the rank of broadcast to lie in [0, 1), but got "
                             "1"));
  CHECK_THROWS_WITH(broadcast(Tensor()), Contains("got an undefined tensor"));
}

/// Number of rows on `rank`: equal on all ranks (kind 0), ascending (1),
/// descending (2) or zero (3).
int64_t rows_of(int rank, int kind) {
  return kind == 0 ? 2 : kind == 1 ? rank : kind == 2 ? 3 - rank : 0;
}

TEST_CASE("tensors of all ranks go to all, or to one", "[collectives]") {
  const int size = GENERATE(1, 2, 3, 4);
  const int kind = GENERATE(0, 1, 2, 3);
  const int to = GENERATE(-1, 0, 1);
  run_ranks(size, [&](const Group& group) {
    for (const auto dtype : kDtypes) {
      const int rank = group->getRank();
      const auto mine = values(rank, {rows_of(rank, kind), 3}, dtype);
      const auto all =
          to < 0 ? all_gather(mine, group) : gather(mine, to % size, group);
      if (to >= 0 && rank != to % size) {
        TORCH_CHECK(all.empty());
        continue;
      }
      TORCH_CHECK(all.size() == static_cast<size_t>(size));
      for (int peer = 0; peer < size; ++peer) {
        check_same(all[peer], values(peer, {rows_of(peer, kind), 3}, dtype));
      }
    }
  });
}

TEST_CASE("a gather of numbers, and of nothing", "[collectives]") {
  const int size = GENERATE(1, 2, 3);
  run_ranks(size, [&](const Group& group) {
    const int rank = group->getRank();
    const auto numbers = all_gather(torch::tensor(rank + 0.5), group);
    for (int peer = 0; peer < size; ++peer) {
      check_same(numbers[peer], torch::tensor(peer + 0.5));
    }
    // Only the last rank has a tensor.
    const bool has_some = rank == size - 1;
    const auto rows =
        all_gather(has_some ? torch::ones({2, 3}) : Tensor(), group);
    for (int peer = 0; peer < size; ++peer) {
      check_same(rows[peer], torch::ones({peer == size - 1 ? 2 : 0, 3}));
    }
    // Rows without elements.
    const auto empty = all_gather(torch::ones({rank + 1, 0}), group);
    for (int peer = 0; peer < size; ++peer) {
      check_same(empty[peer], torch::ones({peer + 1, 0}));
    }
    for (const auto& none : all_gather(Tensor(), group)) {
      TORCH_CHECK(!none.defined());
    }
    // The input stays unchanged, and the result does not alias it.
    const auto mine = torch::ones({2});
    all_gather(mine, group)[rank].zero_();
    check_same(mine, torch::ones({2}));
  });
}

TEST_CASE("tensors that do not fit together", "[collectives][errors]") {
  const auto errors = [](auto make) {
    return try_ranks(3, [make](const Group& group) {
      gather(make(group->getRank() == 2), 1, group);
    });
  };
  for (const auto& error : errors([](bool odd) {
         return torch::ones({odd ? 5 : 4, odd ? 3 : 2});
       })) {
    CHECK_THAT(error,
               Contains("gather: Expected dense tensors of one dtype and of "
                        "the same sizes except for the first, but got on "
                        "ranks 0-1: Float in rows of shape [2]; on rank 2: "
                        "Float in rows of shape [3]"));
  }
  for (const auto& error : errors([](bool odd) {
         return torch::ones({2}, odd ? torch::kInt : torch::kHalf);
       })) {
    CHECK_THAT(error, Contains("on rank 2: Int in rows of shape []"));
  }
  for (const auto& error : errors([](bool odd) {
         return odd ? torch::tensor(1.0) : torch::ones({1});
       })) {
    CHECK_THAT(error, Contains("on rank 2: Float without dimensions"));
  }
  for (const auto& error : errors([](bool odd) {
         const auto tensor = torch::ones({2});
         return odd ? tensor.to_sparse() : tensor;
       })) {
    CHECK_THAT(error, Contains("on rank 2: a tensor that is not dense"));
  }
  for (const auto& error :
       errors([](bool odd) { return odd ? Tensor() : torch::tensor(1.0); })) {
    CHECK_THAT(error,
               Contains("on ranks 0-1: Float without dimensions; on rank 2: an "
                        "undefined tensor"));
  }
  for (const auto& error :
       errors([](bool) { return torch::ones({2}).to_sparse(); })) {
    CHECK_THAT(error, Contains("on ranks 0-2: a tensor that is not dense"));
  }
  CHECK_THROWS_WITH(gather(torch::ones({1}), -1), Contains("but got -1"));
}

}  // namespace collectives_test
}  // namespace ddp
