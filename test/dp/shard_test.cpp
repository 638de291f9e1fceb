#include "dp/servers/detail/shard.h"

#include <torch/optim/adam.h>
#include <torch/types.h>

#include <string>

#include "test/support/catch.h"

namespace dp::detail {
namespace shard_test {

TEST_CASE("tensors of any dtype share one flat tensor", "[shard]") {
  const std::vector<torch::Tensor> like{
      torch::zeros({3}, torch::kHalf),
      torch::zeros({2, 2}, torch::kDouble),
      torch::zeros({}, torch::kBool),
      torch::zeros({0}, torch::kFloat),
      torch::zeros({2}, torch::kComplexDouble)};
  const ShardMessage tensors(like);
  CHECK(tensors.bytes() == 6 + 32 + 1 + 0 + 32);
  for (size_t i = 0; i < like.size(); ++i) {
    const auto& tensor = tensors.tensors()[i];
    CHECK(tensor.sizes() == like[i].sizes());
    CHECK(tensor.scalar_type() == like[i].scalar_type());
    CHECK(tensor.equal(like[i]));
    CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) %
              std::max<size_t>(tensor.element_size(), 1) ==
          0);
  }
  // Another message with the same bytes has the same values.
  const ShardMessage other(like);
  for (const auto& tensor : tensors.tensors()) {
    torch::Tensor(tensor).fill_(1);
  }
  tensors.version() = 7;
  tensors.is_present(4) = 1;
  torch::Tensor(other.flat()).copy_(tensors.flat());
  CHECK(other.version() == 7);
  CHECK(other.is_present(4) == 1);
  for (size_t i = 0; i < like.size(); ++i) {
    CHECK(other.tensors()[i].equal(torch::ones_like(like[i])));
  }
}

TEST_CASE("the tensors of a message train like parameters of their own",
          "[shard]") {
  auto weight = torch::arange(6.).view({2, 3}).t().contiguous().t();
  const std::vector<torch::Tensor> parameters{weight};
  const ShardMessage shard(parameters);
  copy_all(parameters, shard.tensors());
  auto own = shard.tensors();
  own[0].requires_grad_(true);
  torch::optim::Adam optimizer(own, 0.5);
  weight.mutable_grad() = torch::full({2, 3}, 2.0);
  const ShardMessage gradients(parameters);
  copy_gradients(parameters, gradients);
  own[0].mutable_grad() = gradients.tensors()[0];
  optimizer.step();
  const ShardMessage seen(parameters);
  torch::Tensor(seen.flat()).copy_(shard.flat());
  // Adam's first step equals the learning rate, against the gradient.
  CHECK(seen.tensors()[0].allclose(weight - 0.5));
  copy_all(shard.tensors(), parameters);
  CHECK(seen.tensors()[0].equal(weight));
}

torch::Tensor rows_of(std::initializer_list<int64_t> rows, int64_t columns) {
  const std::vector<int64_t> numbers(rows);
  return torch::sparse_coo_tensor(
      torch::tensor(numbers).unsqueeze(0),
      torch::randn({static_cast<int64_t>(numbers.size()), columns}),
      {6, columns});
}

TEST_CASE("sums of gradients that some terms lack", "[shard]") {
  const std::vector<torch::Tensor> like{torch::zeros({6, 3})};
  // By worker: rows (r), a dense gradient (d) or none (n).
  const auto kinds = GENERATE(
      as<std::string>(), "rrr", "drd", "rdr", "nrd", "nnr", "rnr", "nnn", "r");
  const ShardMessage sum(like);
  const ShardMessage next(like);
  torch::Tensor expected;
  const double share = 1.0 / static_cast<double>(kinds.size());
  int64_t row = 0;
  for (const char kind : kinds) {
    auto gradient = kind == 'r'   ? rows_of({row, 5, 2}, 3)
                    : kind == 'd' ? torch::randn({6, 3})
                                  : torch::Tensor();
    if (gradient.defined()) {
      const auto term = gradient.to_dense() * share;
      expected = expected.defined() ? expected + term : term;
    }
    like[0].mutable_grad() = gradient;
    const auto& term = row == 0 ? sum : next;
    torch::Tensor(term.flat()).fill_(0xff);  // bytes of an earlier gradient
    copy_gradients(like, term);
    CHECK(term.is_present(0) == (kind == 'n' ? 0 : 1));
    term.loss() = static_cast<double>(row);
    scale_gradients(term, share);
    if (row > 0) {
      add_gradients(term, sum);
    }
    ++row;
  }
  REQUIRE((sum.is_present(0) != 0) == expected.defined());
  if (expected.defined()) {
    CHECK(sum.tensors()[0].equal(expected));
  }
  CHECK(sum.loss() == static_cast<double>(row * (row - 1) / 2));
}

}  // namespace shard_test
}  // namespace dp::detail
