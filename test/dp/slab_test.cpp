#include "dp/detail/parameter_server/slab.h"

#include <torch/torch.h>

#include "dp/detail/parameter_server/shard.h"
#include "test/support/catch.h"

namespace dp::detail {
namespace {

TEST_CASE("tensors of any dtype share one block", "[slab]") {
  const std::vector<torch::Tensor> like{
      torch::zeros({3}, torch::kHalf),
      torch::zeros({2, 2}, torch::kDouble),
      torch::zeros({}, torch::kBool),
      torch::zeros({0}, torch::kFloat),
      torch::zeros({2}, torch::kComplexDouble)};
  const Slab slab(like);
  CHECK(slab.bytes() == 6 + 32 + 1 + 0 + 32);
  for (size_t i = 0; i < like.size(); ++i) {
    const auto& tensor = slab.tensors()[i];
    CHECK(tensor.sizes() == like[i].sizes());
    CHECK(tensor.scalar_type() == like[i].scalar_type());
    CHECK(tensor.equal(like[i]));
    CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) %
              std::max<size_t>(tensor.element_size(), 1) ==
          0);
  }
  // What one block says, another with the same bytes says.
  const Slab other(like);
  for (const auto& tensor : slab.tensors()) {
    torch::Tensor(tensor).fill_(1);
  }
  torch::Tensor(other.block()).copy_(slab.block());
  for (size_t i = 0; i < like.size(); ++i) {
    CHECK(other.tensors()[i].equal(torch::ones_like(like[i])));
  }
}

TEST_CASE("a shard's pieces train like parameters of their own", "[slab]") {
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
  GradientSlab gradients(parameters);
  weight.mutable_grad() = torch::full({2, 3}, 2.0);
  gradients.take(parameters);
  shard.step({&gradients}, {});
  Slab seen(parameters);
  torch::Tensor(seen.block()).copy_(before);
  CHECK(seen.tensors()[0].equal(weight));  // a snapshot stays
  torch::Tensor(seen.block()).copy_(shard.snapshot());
  // Adam's first step is the learning rate, against the gradient.
  CHECK(seen.tensors()[0].allclose(weight - 0.5));
  shard.copy_to(parameters);
  CHECK(seen.tensors()[0].equal(weight));
}

}  // namespace
}  // namespace dp::detail
