// Ranks that average their parameters every few steps.
#include "ddp/optim/model_averager.h"

#include <optional>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "ddp/distributed_data_parallel.h"
#include "ddp/job/backends.h"
#include "ddp/job/state_sync.h"
#include "ddp/join.h"
#include "test/support/catch.h"
#include "test/support/counting_backend.h"
#include "test/support/forwarding_backend.h"
#include "test/support/gradients.h"
#include "test/support/local_ranks.h"
#include "test/support/rank_threads.h"

namespace ddp {
namespace model_averager_test {

using Catch::Contains;
using test::all_equal;
using test::backward;
using test::gauss;
using test::Group;
using test::run_ranks;
using torch::Tensor;
using Every = ModelAveragerOptions;

Tensor leaf(double value) {
  return torch::full({3}, value, torch::kDouble).requires_grad_();
}

void expect(const Tensor& tensor, double value, const std::string& where) {
  TORCH_CHECK((tensor - value).abs().lt(1e-12).all().item<bool>(),
              where,
              ": expected ",
              value,
              ", but got ",
              tensor);
}

/// Returns a group of the ranks of this rank's half.
Group half_of(const Group& all, const c10::intrusive_ptr<c10d::Store>& store) {
  detail::BackendSpec spec;
  spec.size = all->getSize() / 2;
  spec.rank = all->getRank() % spec.size;
  spec.store = c10::make_intrusive<c10d::PrefixStore>(
      all->getRank() < spec.size ? "lower" : "upper", store);
  spec.timeout = test::kRankPatience / 2;
  return detail::make_gloo_backend(spec);
}

TEST_CASE("parameters are averaged every few steps", "[averager]") {
  const int size = GENERATE(1, 2, 3, 4);
  const int64_t warmup = GENERATE(0, 2);
  run_ranks(size, [&](const Group& group) {
    const auto counted = c10::make_intrusive<test::CountingBackend>(group);
    const auto options = Every(3, counted).warmup_steps(warmup);
    ModelAverager averager(options);
    auto fine = torch::zeros({5}, torch::kDouble).requires_grad_();
    auto image = torch::zeros({2, 3, 4, 5})
                     .contiguous(torch::MemoryFormat::ChannelsLast)
                     .requires_grad_();
    auto frozen = torch::full({3}, group->getRank());
    for (int64_t step = 0; step < 10; ++step) {
      const double mine = step * (group->getRank() + 1.0);
      {
        const torch::NoGradGuard no_grad;
        fine.fill_(mine);
        image.fill_(-mine);
      }
      counted->take();
      const bool averages = step >= warmup && (step - warmup) % 3 == 0;
      TORCH_CHECK(averager.average_parameters({fine, image, frozen}) ==
                  averages);
      const double value = averages ? step * gauss(size) / size : mine;
      TORCH_CHECK((fine - value).abs().lt(1e-12).all().item<bool>(), fine);
      TORCH_CHECK((image + value).abs().lt(1e-5).all().item<bool>());
      TORCH_CHECK(all_equal(frozen, group->getRank()));
      const int64_t bytes = averages && size > 1 ? 5 * 8 + 120 * 4 : 0;
      TORCH_CHECK(counted->take().all_reduce == bytes);
      TORCH_CHECK(averager.steps() == step + 1);
    }
    ModelAverager resumed(options);
    resumed.load_state_dict(averager.state_dict());
    TORCH_CHECK(resumed.average_parameters({fine}) == ((10 - warmup) % 3 == 0));
  });
}

TEST_CASE("post-local SGD averages gradients, then parameters", "[averager]") {
  const int size = 3;
  run_ranks(size, [&](const Group& group) {
    const int64_t warmup = 2;
    auto weight = torch::zeros({4}, torch::kDouble).requires_grad_();
    Reducer reducer({{"w", weight}}, group);
    ModelAverager averager(Every(2, group).warmup_steps(warmup));
    double all = 0;    // common value of the ranks
    double since = 0;  // added by this rank since
    for (int64_t step = 0; step < 7; ++step) {
      weight.mutable_grad().reset();
      const double slope = group->getRank() + 1.0;
      std::optional<NoSyncGuard> alone;
      if (step >= warmup) {
        alone.emplace(reducer);
      }
      backward(reducer, weight.sum() * slope);
      {
        const torch::NoGradGuard no_grad;
        weight += weight.grad();
      }
      const bool averages = averager.average_parameters({weight});
      if (step < warmup) {
        all += gauss(size) / size;
      } else {
        since += slope;
      }
      if (averages) {
        all += since / slope * gauss(size) / size;
        since = 0;
      }
      TORCH_CHECK((weight - (all + since)).abs().lt(1e-9).all().item<bool>(),
                  step,
                  weight);
    }
  });
}

/// Records the largest all-reduce.
class LargestMessage : public test::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override {
    largest = std::max<size_t>(largest, tensors[0].nbytes());
    return ForwardingBackend::allreduce(tensors, options);
  }
  size_t largest = 0;
};

TEST_CASE("an average copies a part of the model at a time", "[averager]") {
  run_ranks(2, [](const Group& real) {
    const auto group = c10::make_intrusive<LargestMessage>(real);
    std::vector<torch::Tensor> tensors;
    for (const int64_t size : {10, 10, 10, 10, 40, 10}) {
      tensors.push_back(torch::full({size}, real->getRank() * 2.0));
    }
    detail::average_over_ranks(*group, tensors, "average", /*bytes=*/100);
    for (const auto& tensor : tensors) {
      TORCH_CHECK(tensor.eq(1).all().item<bool>(), tensor);
    }
    // The tensor that reaches the limit is the message's last.
    TORCH_CHECK(group->largest == 40 + 160, group->largest);
  });
}

TEST_CASE("local steps wait for nobody", "[averager]") {
  run_ranks(2, [](const Group& group) {
    const auto counted = c10::make_intrusive<test::CountingBackend>(group);
    torch::nn::Linear net(3, 2);
    DistributedDataParallel model(
        net, DistributedDataParallelOptions().process_group(counted));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    ModelAverager averager(Every(3, counted).warmup_steps(2));
    for (int64_t step = 0; step < 9; ++step) {
      optimizer.zero_grad();
      std::optional<NoSyncGuard> alone;
      if (step >= 2) {
        alone.emplace(*model);
      }
      counted->take();
      model->forward(torch::full({1, 3}, group->getRank() + 1.0))
          .sum()
          .backward();
      optimizer.step();
      const bool averages = averager.average_parameters(model->parameters());
      TORCH_CHECK(averages == (step >= 2 && step % 3 == 2));
      TORCH_CHECK((counted->take().all_reduce > 0) == (step < 2 || averages),
                  step);
    }
  });
}

TEST_CASE("groups average often, all ranks seldom", "[averager]") {
  const int64_t warmup = GENERATE(0, 4);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(4, [&](const Group& group) {
    const int rank = group->getRank();
    const auto half = half_of(group, store);
    ModelAverager often(Every(2, half).warmup_steps(warmup));
    ModelAverager seldom(Every(6, group).warmup_steps(warmup == 0 ? 0 : 6));
    auto weight = leaf(0);
    auto frozen = torch::full({1}, rank);
    // The weights of all ranks. Each rank's model has only its own.
    std::vector<double> all(4, 0);
    for (int64_t step = 0; step < 14; ++step) {
      for (int each = 0; each < 4; ++each) {
        all[each] += (each + 1) * (step + 1);
      }
      {
        const torch::NoGradGuard no_grad;
        weight.add_((rank + 1) * (step + 1));
      }
      const bool averages = often.average_parameters({weight, frozen});
      TORCH_CHECK(averages == (step >= warmup && step % 2 == 0), step);
      const bool all_average = seldom.average_parameters({weight, frozen});
      TORCH_CHECK(all_average == (step >= warmup && step % 6 == 0), step);
      if (all_average) {
        all.assign(4, (all[0] + all[1] + all[2] + all[3]) / 4);
      } else if (averages) {
        all[0] = all[1] = (all[0] + all[1]) / 2;
        all[2] = all[3] = (all[2] + all[3]) / 2;
      }
      expect(weight, all[rank], "step " + std::to_string(step));
      expect(frozen, rank, "frozen");
    }
    group->barrier()->wait();
  });
}

TEST_CASE("a period that makes no sense is refused", "[averager][errors]") {
  CHECK_THROWS_WITH(ModelAverager(Every(0)), Contains("but got 0"));
  CHECK_THROWS_WITH(ModelAverager(Every(2).warmup_steps(-1)),
                    Contains("but got -1"));
}

TEST_CASE("parameters that a wrapper ignores are not averaged", "[averager]") {
  run_ranks(2, [](const Group& group) {
    torch::nn::Linear net(2, 2);
    const auto options = DistributedDataParallelOptions().process_group(group);
    DistributedDataParallel model(
        net,
        DistributedDataParallelOptions(options).params_and_buffers_to_ignore(
            {"bias"}));
    {
      const torch::NoGradGuard no_grad;
      net->bias.fill_(group->getRank());
      net->weight.fill_(group->getRank());
    }
    ModelAverager(Every(1, group)).average_parameters(model->parameters());
    TORCH_CHECK(net->weight.eq(0.5).all().item<bool>(), net->weight);
    TORCH_CHECK(net->bias.eq(group->getRank()).all().item<bool>(), net->bias);
  });
}

TEST_CASE("an averager is refused in a join", "[averager][join][errors]") {
  const auto errors = test::try_ranks(2, [&](const Group& group) {
    torch::nn::Linear net(2, 1);
    DistributedDataParallel model(
        net, DistributedDataParallelOptions().process_group(group));
    ModelAverager averager(Every(2, group));
    Join join({*model});
    averager.average_parameters(net->parameters());
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("Expected no ModelAverager in a Join"));
  }
}

}  // namespace model_averager_test
}  // namespace ddp
