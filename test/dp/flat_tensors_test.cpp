#include "dp/detail/parameter_server/flat_tensors.h"

#include <torch/optim/adam.h>
#include <torch/types.h>

#include "dp/detail/parameter_server/shard.h"
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
  // What one flat tensor says, another with the same bytes says.
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
  const auto before = shard.snapshot();
  FlatGradients gradients(parameters);
  weight.mutable_grad() = torch::full({2, 3}, 2.0);
  gradients.take(parameters);
  shard.step({&gradients}, {});
  FlatTensors seen(parameters);
  torch::Tensor(seen.flat()).copy_(before);
  CHECK(seen.pieces()[0].equal(weight));  // a snapshot stays
  torch::Tensor(seen.flat()).copy_(shard.snapshot());
  // Adam's first step is the learning rate, against the gradient.
  CHECK(seen.pieces()[0].allclose(weight - 0.5));
  shard.copy_to(parameters);
  CHECK(seen.pieces()[0].equal(weight));
}

}  // namespace flat_tensors_test
}  // namespace dp::detail
