// All ranks make the same pass, over each transport: equal sums, frozen
// parameters, and the errors if ranks differ.
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/distributed_data_parallel.h"
#include "test/support/gradients.h"
#include "test/support/transports.h"

namespace ddp {
namespace agreement_test {

using Catch::Contains;
using test::any_transport;
using test::Group;
using test::leaf;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

Options over(const Group& group) {
  return Options().process_group(group);
}

/// y = a b x + c.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(c10::Device device) {
    for (auto* parameter : {&a, &b, &c}) {
      *parameter =
          torch::ones({1}, torch::dtype(torch::kDouble).device(device));
    }
    a = register_parameter("a", a);
    b = register_parameter("b", b);
    c = register_parameter("c", c);
  }
  Tensor forward(double x) { return a * b * x + c; }
  Tensor a, b, c;
};
TORCH_MODULE(Net);

void expect(const Tensor& tensor, double value) {
  TORCH_CHECK(
      tensor.defined() && std::abs(tensor.item<double>() - value) < 1e-9,
      "Expected ",
      value,
      ", but got ",
      tensor);
}

TEST_CASE("every pass adds up in the same order, the first one too",
          "[agreement]") {
  const bool as_view = GENERATE(false, true);
  const auto& transport = any_transport();
  // With three ranks the rounding of a sum depends on its place in the ring,
  // and thereby in the bucket.
  transport.run_ranks(3, [&](const Group& group, c10::Device device) {
    const auto generator = at::detail::createCPUGenerator(group->getRank());
    std::vector<Tensor> p, slopes;
    std::vector<NamedParameter> named;
    for (int64_t size : {101, 7, 53, 211}) {
      p.push_back(leaf({size}, device));
      slopes.push_back(torch::rand({size}, generator).to(device));
      named.push_back({c10::str("p", size), p.back()});
    }
    Reducer reducer(
        named,
        group,
        test::default_options(group).gradient_as_bucket_view(as_view));
    std::vector<Tensor> first;
    for (int step = 0; step < 3; ++step) {
      auto x = (p[1] * slopes[1]).sum();
      for (const size_t i : {3, 0, 2}) {
        x = x + (p[i] * slopes[i]).sum();
      }
      x.backward();
      for (size_t i = 0; i < p.size(); ++i) {
        const auto grad = p[i].grad().cpu();
        if (step == 0) {
          first.push_back(grad);
        }
        TORCH_CHECK(torch::equal(grad, first[i]), "step ", step);
        p[i].mutable_grad() = Tensor();
      }
    }
  });
}

TEST_CASE("a missing gradient is an error of that pass",
          "[agreement][errors]") {
  const auto& transport = any_transport();
  if (!transport.has_ranks(3)) {
    return;
  }
  const auto errors =
      transport.try_ranks(3, [](const Group& group, c10::Device device) {
        auto used = leaf({3}, device), other = leaf({3}, device);
        Reducer reducer({{"used", used}, {"other", other}},
                        group,
                        test::default_options(group));
        const bool skips = group->getRank() == 1;
        auto loss = skips ? used.sum() : used.sum() + other.sum();
        loss.backward();
      });
  CHECK_THAT(errors[1], Contains("got none on rank 1: other;"));
  CHECK_THAT(errors[1], Contains("find_unused_parameters(true)"));
  if (!transport.is_gpu) {  // there the test itself ends the other ranks
    CHECK_THAT(errors[0], Contains("has left"));
    CHECK_THAT(errors[2], Contains("has left"));
  }
}

TEST_CASE("a parameter that is frozen later misses nothing", "[agreement]") {
  const bool finds_unused = GENERATE(false, true);
  const auto& transport = any_transport();
  transport.run_ranks(2, [&](const Group& group, c10::Device device) {
    Net net(device);
    DistributedDataParallel model(
        net, over(group).find_unused_parameters(finds_unused));
    const double x = group->getRank() + 1;
    for (int epoch = 0; epoch < 6; ++epoch) {
      const bool trains = epoch % 3 == 0;
      net->a.requires_grad_(trains);
      net->zero_grad();
      net->a.mutable_grad() = torch::full_like(net->a, 7);
      model(x).backward();
      expect(net->a.grad(), trains ? 7 + 1.5 : 7);
      expect(net->c.grad(), 1);
    }
  });
}

TEST_CASE("layers are frozen and thawed between epochs", "[agreement]") {
  const bool as_view = GENERATE(false, true);
  const bool finds_unused = GENERATE(false, true);
  const auto& transport = any_transport();
  transport.run_ranks(3, [&](const Group& group, c10::Device device) {
    Net whole(c10::kCPU);
    Net part(device);
    DistributedDataParallel model(part,
                                  over(group)
                                      .gradient_as_bucket_view(as_view)
                                      .find_unused_parameters(finds_unused)
                                      .bucket_cap_mb(1e-6)
                                      .first_bucket_cap_mb(1e-6));
    const auto options = torch::optim::SGDOptions(0.01).momentum(0.9);
    torch::optim::SGD one(whole->parameters(), options);
    torch::optim::SGD many(model->parameters(), options);
    for (int epoch = 0; epoch < 6; ++epoch) {
      for (auto& net : {whole, part}) {
        net->a.requires_grad_(epoch % 3 != 1);
        net->b.requires_grad_(epoch % 3 != 2);
      }
      for (int step = 0; step < 2; ++step) {
        one.zero_grad();
        many.zero_grad();
        ((whole(1).pow(2) + whole(2).pow(2) + whole(3).pow(2)) / 3).backward();
        model(group->getRank() + 1).pow(2).backward();
        one.step();
        many.step();
        expect(part->a, whole->a.item<double>());
        expect(part->b, whole->b.item<double>());
      }
    }
  });
}

TEST_CASE("ranks that freeze different parameters are an error",
          "[agreement][errors]") {
  const bool finds_unused = GENERATE(false, true);
  const auto& transport = any_transport();
  if (transport.is_gpu) {
    return;  // the ranks do not compare
  }
  const auto errors =
      transport.try_ranks(3, [&](const Group& group, c10::Device device) {
        Net net(device);
        DistributedDataParallel model(
            net, over(group).find_unused_parameters(finds_unused));
        model(1).backward();
        net->a.requires_grad_(group->getRank() == 1);
        model(1).backward();
      });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("on ranks 0, 2: pass 2 of model 0 over the group, with "
                        "a frozen") &&
                   Contains("on rank 1: ") && Contains("with nothing frozen"));
  }
}

}  // namespace agreement_test
}  // namespace ddp
