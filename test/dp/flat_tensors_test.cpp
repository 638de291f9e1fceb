#include "dp/servers/detail/flat_tensors.h"

#include <torch/optim/adam.h>
#include <torch/types.h>

#include "dp/servers/detail/gradients.h"
#include "dp/servers/detail/shard.h"
#include "test/support/catch.h"

namespace dp::detail {
namespace flat_tensors_test {

TEST_CASE("tensors of any dtype share one flat tensor", "[flat_tensors]") {
  const std::vector<torch::Tensor> like{
      torch::zeros({3}, torch::kHalf),
      torch::zeros({2, 2}, torch::kDouble),
      torch::zeros({}, torch::kBool),
      torch::zeros({0}, torch::kFloat),
      torch::zeros({2}, torch::kComplexDouble)};
  const FlatTensors tensors(like);
  CHECK(tensors.bytes() == 6 + 32 + 1 + 0 + 32);
  for (size_t i = 0; i < like.size(); ++i) {
    const auto& tensor = tensors.pieces()[i];
    CHECK(tensor.sizes() == like[i].sizes());
    CHECK(tensor.scalar_type() == like[i].scalar_type());
    CHECK(tensor.equal(like[i]));
    CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) %
              std::max<size_t>(tensor.element_size(), 1) ==
          0);
  }
  // Another FlatTensors with the same bytes has the same values.
  const FlatTensors other(like);
  for (const auto& tensor : tensors.pieces()) {
    torch::Tensor(tensor).fill_(1);
  }
  torch::Tensor(other.flat()).copy_(tensors.flat());
  for (size_t i = 0; i < like.size(); ++i) {
    CHECK(other.pieces()[i].equal(torch::ones_like(like[i])));
  }
}

TEST_CASE("a shard's pieces train like parameters of their own",
          "[flat_tensors]") {
  auto weight = torch::arange(6.).view({2, 3}).t().contiguous().t();
  weight.requires_grad_(true);
  const std::vector<torch::Tensor> parameters{weight};
  Shard shard(
      parameters,
      [](std::vector<torch::Tensor> own) {
        own[0].mutable_grad() = torch::ones({2, 3});
        auto optimizer = std::make_unique<torch::optim::Adam>(own, 0.5);
        optimizer->zero_grad(/*set_to_none=*/false);
        return optimizer;
      },
      nullptr);
  weight.mutable_grad() = torch::full({2, 3}, 2.0);
  GradientSum sum;
  const FlatTensors gradients(parameters);
  sum.add(gradients, copy_gradients(parameters, gradients), 1);
  shard.step(sum.gradients(), {});
  FlatTensors seen(parameters);
  torch::Tensor(seen.flat()).copy_(shard.flat());
  // Adam's first step equals the learning rate, against the gradient.
  CHECK(seen.pieces()[0].allclose(weight - 0.5));
  shard.copy_to(parameters);
  CHECK(seen.pieces()[0].equal(weight));
}

torch::Tensor rows_of(std::initializer_list<int64_t> rows, int64_t columns) {
  const std::vector<int64_t> numbers(rows);
  return torch::sparse_coo_tensor(
      torch::tensor(numbers).unsqueeze(0),
      torch::randn({static_cast<int64_t>(numbers.size()), columns}),
      {6, columns});
}

TEST_CASE("sums of gradients that some terms lack", "[flat_tensors]") {
  const std::vector<torch::Tensor> like{torch::zeros({6, 3})};
  // By worker: rows (r), a dense gradient (d) or none (n).
  const auto kinds = GENERATE(
      as<std::string>(), "rrr", "drd", "rdr", "nrd", "nnr", "rnr", "nnn", "r");
  GradientSum sum;
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
    const FlatTensors memory(like);
    torch::Tensor(memory.flat()).fill_(0xff);  // bytes of an earlier gradient
    const auto presence = copy_gradients(like, memory);
    CHECK(presence == Presence{kind != 'n'});
    sum.add(memory, presence, share);
    if (++row > 1) {  // the sum keeps only the first memory
      torch::Tensor(memory.flat()).fill_(0xff);
    }
  }
  const auto result = sum.gradients()[0];
  REQUIRE(result.defined() == expected.defined());
  if (expected.defined()) {
    CHECK(result.equal(expected));
  }
  CHECK(sum.clear().bytes() == 72);
  CHECK(sum.is_empty());
}

TEST_CASE("presences that cannot be are found", "[flat_tensors]") {
  CHECK(presence_problem({0, 1}, 2).empty());
  for (const auto& wrong :
       std::vector<Presence>{{}, {1}, {2, 1}, {-1, 1}, {1, 1, 1}}) {
    CHECK_FALSE(presence_problem(wrong, 2).empty());
  }
}

}  // namespace flat_tensors_test
}  // namespace dp::detail
