// Modules with parameters on several devices, as in model parallelism, under
// DistributedDataParallel. The devices are fakes, so this is a separate
// program.
#include <limits>
#include <thread>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/amp/grad_scaler.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/reducer.h"
#include "test/support/catch.h"
#include "test/support/exchange_ways.h"
#include "test/support/fake_devices.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace several_devices_test {

using Catch::Contains;
using test::fake_device;
using test::FakeDeviceBackend;
using test::Group;
using test::run_ranks;
using test::try_ranks;

constexpr int64_t kBatch = 6;

/// Linear(inputs, outputs), created on its device because Module::to() refuses
/// fake devices. The buffer counts forwards.
struct LayerImpl : torch::nn::Module {
  LayerImpl(int64_t inputs, int64_t outputs, torch::Device device)
      : weight(register_parameter(
            "weight", (torch::rand({inputs, outputs}) - 0.5).to(device))),
        bias(register_parameter("bias", torch::rand({outputs}).to(device))),
        count(register_buffer("count", torch::zeros({1}).to(device))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = x.to(weight.device()).mm(weight) + bias;
    const torch::NoGradGuard no_grad;
    count.add_(1);
    return y;
  }

  torch::Tensor weight, bias, count;
};
TORCH_MODULE(Layer);

/// Two layers on the first device and two on the second. The last layer can be
/// left out.
struct TwoStagesImpl : torch::nn::Module {
  TwoStagesImpl(torch::Device front, torch::Device back)
      : first(register_module("first", Layer(5, 8, front))),
        middle(register_module("middle", Layer(8, 8, front))),
        second(register_module("second", Layer(8, 7, back))),
        last(register_module("last", Layer(7, 3, back))) {}

  torch::Tensor forward(const torch::Tensor& x, bool uses_last = true) {
    const auto y = middle(first(x).relu()).relu();
    const auto z = second(y).relu();
    return uses_last ? last(z).sum(1) : z.sum(1);
  }

  Layer first, middle, second, last;
};
TORCH_MODULE(TwoStages);

/// Returns a batch that differs between ranks and steps.
torch::Tensor batch_of(int64_t rank, int64_t step) {
  const auto place = torch::arange(kBatch * 5, torch::kFloat32).view({-1, 5});
  return torch::sin(place * (1.0 + static_cast<double>(rank)) +
                    static_cast<double>(step));
}

void copy_state(const TwoStages& from, const TwoStages& to) {
  const torch::NoGradGuard no_grad;
  const auto copy = [](const auto& a, const auto& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      b[i].copy_(a[i]);
    }
  };
  copy(from->parameters(), to->parameters());
  copy(from->buffers(), to->buffers());
}

/// Returns the expected gradients: the mean of the gradients that plain modules
/// on the CPU compute from each rank's batch.
std::vector<torch::Tensor> mean_gradients(const TwoStages& like,
                                          int64_t ranks,
                                          int64_t step) {
  std::vector<torch::Tensor> sums;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    TwoStages plain(torch::kCPU, torch::kCPU);
    copy_state(like, plain);
    plain->forward(batch_of(rank, step)).square().mean().backward();
    const auto parameters = plain->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto part = parameters[i].grad() / static_cast<double>(ranks);
      rank == 0 ? sums.push_back(part) : void(sums[i] += part);
    }
  }
  return sums;
}

void check_close(const torch::Tensor& mine, const torch::Tensor& expected) {
  TORCH_CHECK(torch::allclose(mine.cpu(), expected, 1e-4, 1e-6),
              mine.cpu(),
              " instead of ",
              expected);
}

void train(const Group& real,
           torch::Device front,
           torch::Device back,
           DistributedDataParallelOptions options) {
  const auto group = c10::make_intrusive<FakeDeviceBackend>(real);
  const TwoStages module(front, back);  // random, differs between ranks
  DistributedDataParallel model(module, options.process_group(group));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int64_t step = 0; step < 4; ++step) {
    const auto expected = mean_gradients(module, real->getSize(), step);
    optimizer.zero_grad();
    const auto input = batch_of(real->getRank(), step).to(front);
    model->forward(input).square().mean().backward();
    const auto parameters = module->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& grad = parameters[i].grad();
      TORCH_CHECK(grad.device() == parameters[i].device());
      TORCH_CHECK(grad.storage().device() == grad.device(),
                  "a gradient on ",
                  grad.device(),
                  " lies in the memory of ",
                  grad.storage().device());
      check_close(parameters[i].grad(), expected[i]);
    }
    optimizer.step();
    TORCH_CHECK(module->last->count.cpu().item<float>() == step + 1);
  }
}

TEST_CASE("a module on two devices trains as on one") {
  const int ranks = GENERATE(2, 3, 4);
  const bool is_view = GENERATE(false, true);
  const double cap = GENERATE(25.0, 1e-4);
  CAPTURE(ranks, is_view, cap);
  run_ranks(ranks, [&](const Group& group) {
    const int first = 2 * group->getRank();
    train(group,
          fake_device(first),
          fake_device(first + 1),
          DistributedDataParallelOptions()
              .gradient_as_bucket_view(is_view)
              .first_bucket_cap_mb(cap)
              .bucket_cap_mb(cap));
  });
}

// The input has one row, so that gradients of matrices have rank one.
TEST_CASE("an exchange brings gradients of two devices to where they belong") {
  const auto ways = test::device_ways();
  const auto& way = ways[GENERATE_COPY(range(size_t{0}, ways.size()))];
  INFO(way.name);
  run_ranks(2, [&](const Group& real) {
    const auto group = c10::make_intrusive<FakeDeviceBackend>(real);
    const int first = 2 * real->getRank();
    const TwoStages module(fake_device(first), fake_device(first + 1));
    DistributedDataParallel model(
        module,
        DistributedDataParallelOptions().process_group(group).exchange(
            way.make(group)));
    TwoStages plain(torch::kCPU, torch::kCPU);
    copy_state(module, plain);
    for (int64_t step = 0; step < 3; ++step) {
      const auto row = batch_of(0, step).narrow(0, 0, 1);
      plain->zero_grad();
      plain->forward(row).square().sum().backward();
      model->zero_grad();
      const auto loss = model->forward(row.to(fake_device(first)));
      (loss.square().sum() * (real->getRank() + 1.0)).backward();
      const auto expected = plain->parameters();
      const auto parameters = module->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        const auto& grad = parameters[i].grad();
        TORCH_CHECK(grad.device() == parameters[i].device());
        TORCH_CHECK(grad.storage().device() == grad.device());
        const auto mean = expected[i].grad() * test::device_factor(way);
        const double largest = mean.abs().max().item<float>();
        TORCH_CHECK(torch::allclose(grad.cpu(), mean, 0, 0.02 * largest),
                    "step ",
                    step,
                    ", parameter ",
                    i,
                    ": ",
                    grad.cpu(),
                    " instead of ",
                    mean);
      }
    }
  });
}

TEST_CASE("a rank may number its devices the other way round") {
  run_ranks(2, [&](const Group& group) {
    const int rank = group->getRank();
    train(group,
          fake_device(rank == 0 ? 1 : 2),
          fake_device(rank == 0 ? 0 : 3),
          DistributedDataParallelOptions());
  });
}

TEST_CASE("ranks that divide the module differently are told where") {
  const auto errors = try_ranks(3, [&](const Group& real) {
    const int first = 2 * real->getRank();
    const bool is_odd = real->getRank() == 1;
    const auto group = c10::make_intrusive<FakeDeviceBackend>(real);
    const TwoStages module(fake_device(first),
                           fake_device(is_odd ? first : first + 1));
    DistributedDataParallel model(
        module, DistributedDataParallelOptions().process_group(group));
  });
  for (const auto& error : errors) {
    CHECK_THAT(
        error,
        Contains("second.weight") &&
            Contains("device number 2; on rank 1: parameter second.weight"));
  }
}

TEST_CASE("a gradient that is missing on one of two devices is named") {
  const auto errors = try_ranks(2, [&](const Group& real) {
    const int first = 2 * real->getRank();
    const auto group = c10::make_intrusive<FakeDeviceBackend>(real);
    const TwoStages module(fake_device(first), fake_device(first + 1));
    DistributedDataParallel model(
        module, DistributedDataParallelOptions().process_group(group));
    for (int64_t step = 0; step < 3; ++step) {
      const bool uses_last = step < 2 || real->getRank() == 0;
      model->forward(batch_of(0, step).to(fake_device(first)), uses_last)
          .sum()
          .backward();
    }
  });
  CHECK_THAT(errors[1], Contains("last.weight"));
}

TEST_CASE("a parameter that no rank used on one of two devices") {
  run_ranks(2, [&](const Group& real) {
    const int first = 2 * real->getRank();
    const auto group = c10::make_intrusive<FakeDeviceBackend>(real);
    const TwoStages module(fake_device(first), fake_device(first + 1));
    DistributedDataParallel model(module,
                                  DistributedDataParallelOptions()
                                      .process_group(group)
                                      .find_unused_parameters(true));
    for (int64_t step = 0; step < 3; ++step) {
      model->forward(batch_of(0, step).to(fake_device(first)), false)
          .sum()
          .backward();
      TORCH_CHECK(!module->last->weight.grad().defined());
      TORCH_CHECK(module->second->weight.grad().defined());
    }
  });
}

// Autograd's thread of one device adds in place to the gradients that the
// program keeps, while the first gradient of the pass comes on another thread.
TEST_CASE("a bucket that the program holds is replaced on its own device") {
  run_ranks(2, [&](const Group& real) {
    const int front = 2 * real->getRank();
    const auto group = c10::make_intrusive<FakeDeviceBackend>(real);
    TwoStages module(fake_device(front), fake_device(front + 1));
    DistributedDataParallel model(
        module, DistributedDataParallelOptions().process_group(group));
    const auto input = batch_of(real->getRank(), 0).to(fake_device(front));
    const auto mean = mean_gradients(module, 2, 0);
    for (int pass = 0; pass < 2; ++pass) {
      model->zero_grad();
      model->forward(input).square().mean().backward();
    }
    const auto held = module->first->weight.grad().detach();
    const auto y =
        module->middle->forward(module->first->forward(input).relu()).relu();
    bool is_own = false;
    // Runs on the thread of the front device, before the gradients of that
    // device and after the gradients of the other device.
    y.register_hook([&](const torch::Tensor&) {
      is_own = module->first->weight.grad().is_alias_of(held);
    });
    const auto z = module->second->forward(y).relu();
    module->last->forward(z).sum(1).square().mean().backward();
    TORCH_CHECK(is_own, "another device's thread has replaced the gradient");
    TORCH_CHECK(!module->first->weight.grad().is_alias_of(held));
    const auto parameters = module->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      check_close(parameters[i].grad(), 2 * mean[i]);
    }
  });
}

TEST_CASE("a nested pass may end on the thread of another device") {
  run_ranks(2, [](const Group& real) {
    const int rank = real->getRank();
    const auto weight_on = [rank](int device) {
      return torch::zeros({3})
          .to(fake_device(2 * rank + device))
          .requires_grad_();
    };
    const auto outer = weight_on(0);
    const auto inner = weight_on(1);
    Reducer reducer({{"outer", outer, false}, {"inner", inner, false}},
                    c10::make_intrusive<FakeDeviceBackend>(real));
    std::thread::id thread_of_inner;
    inner.register_hook([&](const torch::Tensor&) {
      thread_of_inner = std::this_thread::get_id();
    });
    for (int pass = 0; pass < 3; ++pass) {
      outer.mutable_grad().reset();
      inner.mutable_grad().reset();
      reducer.before_forward();
      const auto y = outer * (rank + 1);
      std::thread::id thread_of_outer;
      y.register_hook([&](const torch::Tensor&) {
        thread_of_outer = std::this_thread::get_id();
        const torch::AutoGradMode with_graph(true);
        (inner * (rank + 3)).sum().backward();
      });
      y.sum().backward();
      TORCH_CHECK(thread_of_inner != thread_of_outer);
      check_close(outer.grad(), torch::full({3}, 1.5));
      check_close(inner.grad(), torch::full({3}, 3.5));
    }
  });
}

TEST_CASE("a scaler unscales gradients on several devices, told by one number",
          "[devices][grad_scaler]") {
  const int bad = GENERATE(-1, 0, 1, 2);
  const int scale_at = GENERATE(0, 2);
  const auto weight_on = [](c10::Device device) {
    return torch::zeros({3}).to(device).requires_grad_();
  };
  std::vector<torch::Tensor> weights{weight_on(fake_device(0)),
                                     weight_on(fake_device(1)),
                                     weight_on(c10::kCPU)};
  torch::optim::SGD optimizer(weights, 1.0);
  GradScaler scaler(GradScalerOptions().init_scale(8));
  scaler.scale(torch::ones({}).to(weights[scale_at].device()));
  std::vector<torch::Tensor> losses;
  for (int i = 0; i < 3; ++i) {
    const double slope =
        i == bad ? std::numeric_limits<double>::infinity() : i + 1.0;
    losses.push_back((weights[i] * slope).sum());
  }
  for (const auto& loss : scaler.scale(losses)) {
    loss.backward();
  }
  CHECK(scaler.step(optimizer) == (bad < 0));
  scaler.update();
  CHECK(scaler.get_scale() == (bad < 0 ? 8 : 4));
  for (int i = 0; i < 3; ++i) {
    CHECK(weights[i].cpu().eq(bad < 0 ? -(i + 1) : 0).all().item<bool>());
  }
}

}  // namespace several_devices_test
}  // namespace ddp
