#include <torch/cuda.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>

#include "test/fake_gpu/control.h"
#include "test/support/catch.h"

// Tests operators that are not plain LibTorch CPU code, together with some that
// are.
namespace fake_gpu::test {
namespace operators_test {

using torch::Tensor;

struct Trained {
  Tensor output;
  std::vector<Tensor> gradients;
};

Trained train_lstm(torch::Device device) {
  torch::manual_seed(5);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4).num_layers(2));
  const auto input = torch::randn({6, 2, 3});
  lstm->to(device);
  const auto output = std::get<0>(lstm->forward(input.to(device)));
  output.pow(2).sum().backward();
  Trained result{output.detach().cpu(), {}};
  for (const auto& parameter : lstm->parameters()) {
    result.gradients.push_back(parameter.grad().cpu());
  }
  return result;
}

TEST_CASE("an LSTM trains as on the CPU") {
  schedule(Mode::lazy, 1);
  const auto expected = train_lstm(torch::kCPU);
  const auto got = train_lstm(torch::kCUDA);
  CHECK(got.output.allclose(expected.output, 1e-4, 1e-6));
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    CHECK(got.gradients[i].allclose(expected.gradients[i], 1e-4, 1e-6));
  }
}

TEST_CASE("dropout draws from the device's generator") {
  schedule(Mode::lazy, 1);
  const auto draw = [](uint64_t seed) {
    torch::cuda::manual_seed(seed);
    auto ones = torch::ones({1000}, torch::kCUDA).requires_grad_();
    const auto dropped = torch::dropout(ones, 0.25, /*train=*/true);
    dropped.sum().backward();
    CHECK(ones.grad().cpu().equal(dropped.detach().cpu()));
    return dropped.detach().cpu();
  };
  const auto before = at::detail::getDefaultCPUGenerator().get_state();
  const auto first = draw(1);
  CHECK(at::detail::getDefaultCPUGenerator().get_state().equal(before));
  CHECK(first.equal(draw(1)));
  CHECK_FALSE(first.equal(draw(2)));
  const auto kept = first.ne(0);
  CHECK(first.masked_select(kept).allclose(
      torch::full({kept.sum().item<int64_t>()}, 1 / 0.75)));
  CHECK(kept.sum().item<int64_t>() > 600);
  CHECK(kept.sum().item<int64_t>() < 900);
}

TEST_CASE("kernels copy every type, strided and cast") {
  schedule(Mode::lazy, 1);
  const auto matrix = torch::arange(12, torch::kDouble).reshape({3, 4});
  const auto on_device = matrix.to(torch::kCUDA);
  CHECK(on_device.t().contiguous().cpu().equal(matrix.t()));
  for (const auto type :
       {torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kLong}) {
    const auto expected = matrix.to(type);
    CHECK(on_device.to(type).cpu().equal(expected));
    CHECK(on_device.t().to(type).contiguous().cpu().equal(expected.t()));
    CHECK(on_device.to(type).to(torch::kDouble).cpu().equal(matrix));
  }
  const auto complex = torch::complex(matrix, -matrix);
  const auto there = complex.to(torch::kCUDA);
  CHECK(there.t().contiguous().cpu().equal(complex.t()));
  std::vector<Tensor> to{torch::zeros_like(there)};
  at::_foreach_copy_(to, {there});
  CHECK(to[0].cpu().equal(complex));
}

TEST_CASE("an operator refuses tensors of several devices, as LibTorch does") {
  const auto host = torch::ones({2, 2});
  const auto first = host.to(torch::kCUDA);
  const auto second = host.to(torch::Device(torch::kCUDA, 1));
  const auto labels = torch::zeros({2}, torch::kLong);
  const std::function<Tensor()> operators[] = {
      [&] { return first + host; },
      [&] { return host + first; },
      [&] { return first + second; },
      [&] { return first + second[0][0]; },  // only the CPU's are numbers
      [&] { return host + first[0][0]; },
      [&] { return torch::mm(first, host); },
      [&] {
        return torch::cat({first, second});
      },
      [&] { return torch::where(first > 0, first, host); },
      [&] { return torch::nll_loss(first, labels); },
      [&] { return torch::index_select(first, 0, labels); },
      [&] { return first.clone().mul_(host); },  // keeps its CUDA code
      [&] { return first.clone().addcmul_(second, second); },
  };
  const size_t i = GENERATE(range(0, 12));
  CAPTURE(i);
  REQUIRE(std::size(operators) == 12);
  CHECK_THROWS_WITH(operators[i](),
                    Catch::Contains("Expected all tensors to be on the same "
                                    "device, but found at least two devices"));
}

TEST_CASE("numbers, indices and copies may come from another device") {
  const auto host = torch::arange(4, torch::kFloat);
  const auto there = host.to(torch::kCUDA);
  CHECK((there * torch::tensor(2.0)).cpu().equal(host * 2));
  CHECK((torch::tensor(2.0) + there).cpu().equal(host + 2));
  CHECK(there.index({torch::tensor({3, 1})})
            .cpu()
            .equal(host.index({torch::tensor({3, 1})})));
  auto second = torch::zeros({4}, torch::Device(torch::kCUDA, 1));
  second.copy_(there);
  CHECK(second.cpu().equal(host));
}

}  // namespace operators_test
}  // namespace fake_gpu::test
