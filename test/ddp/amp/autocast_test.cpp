#include "ddp/amp/autocast.h"

#include <thread>

#include <ATen/autocast_mode.h>
#include <torch/types.h>

#include "test/support/catch.h"

namespace ddp {
namespace autocast_test {

using Catch::Contains;
using torch::Tensor;

constexpr auto kDevice = torch::kCPU;

/// Returns the dtype in which this thread computes a matrix product.
torch::Dtype product_dtype() {
  return torch::mm(torch::ones({2, 3}), torch::ones({3, 2})).scalar_type();
}

struct Setting {
  Setting()
      : enabled(at::autocast::is_autocast_enabled(kDevice)),
        dtype(at::autocast::get_autocast_dtype(kDevice)),
        cache(at::autocast::is_autocast_cache_enabled()) {}
  bool operator==(const Setting& other) const {
    return enabled == other.enabled && dtype == other.dtype &&
           cache == other.cache;
  }
  bool enabled;
  torch::Dtype dtype;
  bool cache;
};

TEST_CASE("products compute in the narrow dtype, losses in float",
          "[autocast]") {
  const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
  auto weight = torch::full({2, 3}, 0.1f).requires_grad_();
  const auto input = torch::full({4, 3}, 1.0f + 1.0f / 4096);  // rounds to 1
  Tensor output;
  Tensor loss;
  {
    const AutocastGuard autocast(kDevice, AutocastOptions().dtype(dtype));
    output = torch::linear(input, weight);
    loss = torch::mse_loss(output, torch::zeros({4, 2}));
  }
  CHECK(output.scalar_type() == dtype);
  CHECK(loss.scalar_type() == torch::kFloat);
  CHECK(product_dtype() == torch::kFloat);
  const auto narrow = weight.detach().to(dtype).to(torch::kFloat);
  CHECK(
      output.to(torch::kFloat)
          .allclose(torch::full({4, 2}, 3 * narrow[0][0].item<float>()), 1e-2));
  loss.backward();  // outside of the guard
  CHECK(weight.grad().scalar_type() == torch::kFloat);
  // d(mean of y^2)/dw = sum of y / 4 * x.
  CHECK(weight.grad().allclose(torch::full({2, 3}, 0.3f), 1e-2));
}

TEST_CASE("the default is the device's, then the outer guard's", "[autocast]") {
  const AutocastGuard outer(kDevice);
  CHECK(product_dtype() == torch::kBFloat16);
  {
    const AutocastGuard half(kDevice, AutocastOptions().dtype(torch::kHalf));
    CHECK(product_dtype() == torch::kHalf);
    {
      const AutocastGuard off(kDevice, AutocastOptions().enabled(false));
      CHECK(product_dtype() == torch::kFloat);
      const AutocastGuard on_again(kDevice);
      CHECK(product_dtype() == torch::kHalf);
    }
    {
      const AutocastGuard off(
          kDevice, AutocastOptions().enabled(false).dtype(torch::kFloat));
      CHECK(product_dtype() == torch::kFloat);
    }
    CHECK(product_dtype() == torch::kHalf);
  }
  CHECK(product_dtype() == torch::kBFloat16);
}

TEST_CASE("each guard restores the state that it found", "[autocast]") {
  const Setting outside;
  try {
    const AutocastGuard cuda(torch::kCUDA);
    CHECK(Setting() == outside);  // a guard of another device type
    const AutocastGuard no_cache(kDevice,
                                 AutocastOptions().cache_enabled(false));
    const Setting inside;
    CHECK(inside.enabled);
    CHECK(!inside.cache);
    {
      const AutocastGuard inner(
          kDevice, AutocastOptions().dtype(torch::kHalf).cache_enabled(true));
      CHECK(Setting().cache);
    }
    CHECK(Setting() == inside);
    throw std::runtime_error("on the way out");
  } catch (const std::runtime_error&) {
    CHECK(Setting() == outside);
  }
  CHECK(!at::autocast::is_autocast_enabled(torch::kCUDA));
}

TEST_CASE("narrow copies are kept until the outermost guard goes",
          "[autocast]") {
  const bool keeps = GENERATE(true, false);
  auto weight = torch::ones({2, 3}).requires_grad_();
  const auto product = [&] {
    return torch::linear(torch::ones({1, 3}), weight)
        .flatten()[0]
        .item<float>();
  };
  const auto set = [&](double value) {
    const torch::NoGradGuard no_grad;
    weight.fill_(value);
  };
  {
    const AutocastGuard outer(kDevice, AutocastOptions().cache_enabled(keeps));
    CHECK(product() == 3);
    set(2);
    CHECK(product() == (keeps ? 3 : 6));
    { const AutocastGuard inner(kDevice); }
    CHECK(product() == (keeps ? 3 : 6));
  }
  const AutocastGuard next(kDevice, AutocastOptions().cache_enabled(keeps));
  CHECK(product() == 6);
}

TEST_CASE("a thread has its own autocast", "[autocast]") {
  const AutocastGuard mine(kDevice);
  std::vector<torch::Dtype> seen;
  std::thread([&] {
    seen.push_back(product_dtype());
    const AutocastGuard its(kDevice, AutocastOptions().dtype(torch::kHalf));
    seen.push_back(product_dtype());
  }).join();
  CHECK(seen == std::vector<torch::Dtype>{torch::kFloat, torch::kHalf});
  CHECK(product_dtype() == torch::kBFloat16);
}

TEST_CASE("a refused AutocastGuard changes nothing", "[autocast][errors]") {
  const Setting outside;
  CHECK_THROWS_WITH(
      AutocastGuard(kDevice, AutocastOptions().dtype(torch::kFloat)),
      Contains("kHalf or torch::kBFloat16") && Contains("got Float") &&
          Contains("enabled(false)"));
  CHECK_THROWS_WITH(AutocastGuard(c10::DeviceType::Meta),
                    Contains("with autocast") && Contains("got meta"));
  CHECK(Setting() == outside);
  CHECK(at::autocast::increment_nesting() == 1);
  CHECK(at::autocast::decrement_nesting() == 0);
}

}  // namespace autocast_test
}  // namespace ddp
