// FullyShardedDataParallel beside DistributedDataParallel. The ranks are
// threads.
#include "ddp/fully_sharded_data_parallel.h"

#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include <c10/core/InferenceMode.h>
#include <torch/autograd.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/serialize.h>

#include "ddp/amp/autocast.h"
#include "ddp/amp/grad_scaler.h"
#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/optim/model_averager.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "test/ddp/shard/sharded_net.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace fully_sharded_test {

using test::Elementwise;
using test::Form;
using test::Group;
using test::ShardedNet;
using torch::Tensor;

using Plain = DistributedDataParallel<ShardedNet>;
using Sharded = FullyShardedDataParallel<ShardedNet>;

FullyShardedDataParallelOptions over(const Group& group) {
  return FullyShardedDataParallelOptions().process_group(group);
}

/// The form of the next models.
Form form = Form::host;

/// One model for each wrapper, with equal parameters.
struct Pair {
  explicit Pair(const Group& group,
                Elementwise kind = Elementwise::adamw,
                FullyShardedDataParallelOptions options = {})
      : rank(group->getRank()) {
    test::copy_state(plain, sharded);
    a = std::make_unique<Plain>(
        plain,
        DistributedDataParallelOptions()
            .process_group(group)
            .find_unused_parameters(options.find_unused_parameters()));
    b = test::in_form(form, group, [&] {
      return std::make_unique<Sharded>(sharded, options.process_group(group));
    });
    optimizer_a = test::make_elementwise(kind, (*a)->parameters());
    optimizer_b = test::make_elementwise(kind, (*b)->parameters());
  }

  template <class Model>
  Tensor loss_of(Model& model, int step) const {
    return model->forward(test::input_of(step, rank)).square().mean();
  }

  void train(int step) {
    const auto run = [&](auto& model, auto& optimizer) {
      optimizer.zero_grad();
      auto loss = loss_of(model, step);
      loss.backward();
      optimizer.step();
      return loss.detach();
    };
    expect_equal(run(*a, *optimizer_a), run(*b, *optimizer_b), "loss");
  }

  static void expect_equal(const Tensor& x, const Tensor& y, const char* what) {
    TORCH_CHECK(torch::equal(x, y),
                what,
                " differs by ",
                (x - y).abs().max().item<double>());
  }

  void expect_equal_state() const {
    const WholeParameters whole(**b);
    for (const auto& item : plain->named_parameters()) {
      expect_equal(item.value(),
                   sharded->named_parameters()[item.key()],
                   item.key().c_str());
    }
    for (const auto& item : plain->named_buffers()) {
      expect_equal(item.value(),
                   sharded->named_buffers()[item.key()],
                   item.key().c_str());
    }
  }

  const int rank;
  ShardedNet plain, sharded;
  std::unique_ptr<Plain> a;
  std::unique_ptr<Sharded> b;
  std::unique_ptr<torch::optim::Optimizer> optimizer_a, optimizer_b;
};

/// Runs ranks of a job. Its DistributedDataParallel also sums in shared memory,
/// in the same order.
void run_as(Form as,
            int size,
            const std::function<void(const Group& group)>& body) {
  form = as;
  CAPTURE(static_cast<int>(form));
  CHECK(test::try_host_ranks(size, body) ==
        std::vector<std::string>(static_cast<size_t>(size)));
}

/// Runs them in each form.
void run(int size, const std::function<void(const Group& group)>& body) {
  run_as(Form::host, size, body);
  run_as(Form::gathered, size, body);
}

/// Expects an error with these words.
template <class Call>
void expect_error(const std::string& words, const Call& call) {
  std::string text = "no error";
  try {
    call();
  } catch (const std::exception& error) {
    text = error.what();
  }
  TORCH_CHECK(text.find(words) != std::string::npos,
              "expected \"",
              words,
              "\", but got: ",
              text);
}

TEST_CASE("shards train bit for bit as DistributedDataParallel", "[shard]") {
  const int size = GENERATE(1, 2, 3, 4);
  const double cap = GENERATE(0.0001, 0.005, 50.0);
  CAPTURE(size, cap);
  run(size, [&](const Group& group) {
    Pair pair(group,
              Elementwise::adamw,
              FullyShardedDataParallelOptions().unit_cap_mb(cap));
    for (int step = 0; step < 4; ++step) {
      pair.train(step);
    }
    pair.expect_equal_state();
    pair.train(5);
    pair.expect_equal_state();
  });
}

TEST_CASE("shards step with every elementwise optimizer", "[shard]") {
  const auto kind = GENERATE(Elementwise::sgd,
                             Elementwise::amsgrad,
                             Elementwise::rmsprop,
                             Elementwise::adagrad,
                             Elementwise::fused,
                             Elementwise::fused_sgd);
  CAPTURE(static_cast<int>(kind));
  run(3, [&](const Group& group) {
    Pair pair(group, kind);
    for (int step = 0; step < 3; ++step) {
      pair.train(step);
    }
    pair.expect_equal_state();
  });
}

TEST_CASE("shards: local passes, recomputation, evaluation in between",
          "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group);
    pair.plain->checkpoints = pair.sharded->checkpoints = true;
    for (int step = 0; step < 3; ++step) {
      const auto run = [&](auto& model, auto& optimizer) {
        optimizer.zero_grad();
        {
          const NoSyncGuard guard(*model);
          pair.loss_of(model, 10 + step).backward();
          pair.loss_of(model, 20 + step).backward();
        }
        pair.loss_of(model, step).backward();
        optimizer.step();
        const torch::NoGradGuard no_grad;
        model->eval();
        auto loss = pair.loss_of(model, 30 + step);
        model->train();
        return loss;
      };
      Pair::expect_equal(run(*pair.a, *pair.optimizer_a),
                         run(*pair.b, *pair.optimizer_b),
                         "loss");
    }
    pair.expect_equal_state();
  });
}

TEST_CASE("shards: parameters that no rank or one rank uses", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group,
              Elementwise::sgd,
              FullyShardedDataParallelOptions().find_unused_parameters(true));
    for (int step = 0; step < 4; ++step) {
      const bool one_uses = step == 2 && form == Form::host;
      const bool uses = one_uses ? pair.rank == 0 : step == 0;
      pair.plain->uses_spare = pair.sharded->uses_spare = uses;
      pair.train(step);
    }
    pair.expect_equal_state();
  });
}

TEST_CASE("shards: the norm of the gradients of all ranks", "[shard]") {
  const double type = GENERATE(1.0, 2.0, INFINITY);
  CAPTURE(type);
  run(3, [&](const Group& group) {
    Pair pair(group, Elementwise::sgd);
    const auto backward = [&](auto& model) {
      pair.loss_of(model, 1).backward();
    };
    backward(*pair.a);
    backward(*pair.b);
    const double expected =
        torch::nn::utils::clip_grad_norm_((*pair.a)->parameters(), 0.001, type);
    const double norm = (*pair.b)->clip_grad_norm_(0.001, type);
    TORCH_CHECK(std::abs(norm - expected) < 1e-5 * expected, norm, expected);
    pair.optimizer_a->step();
    pair.optimizer_b->step();
    const WholeParameters whole(**pair.b);
    for (const auto& item : pair.plain->named_parameters()) {
      TORCH_CHECK(torch::allclose(
          item.value(), pair.sharded->named_parameters()[item.key()], 1e-6));
    }
  });
}

TEST_CASE("shards: a GradScaler skips the step of all ranks", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group, Elementwise::sgd);
    GradScaler scaler(GradScalerOptions().process_group(group).init_scale(4));
    const auto step = [&](double factor) {
      pair.optimizer_b->zero_grad();
      auto loss = pair.loss_of(*pair.b, 1);
      scaler.scale(pair.rank == 1 ? loss * factor : loss).backward();
      const bool stepped = scaler.step(*pair.optimizer_b);
      scaler.update();
      return stepped;
    };
    TORCH_CHECK(step(1));
    TORCH_CHECK(!step(INFINITY));
    TORCH_CHECK(step(1));
  });
}

TEST_CASE("one rank evaluates alone while the others wait for it", "[shard]") {
  const auto kind =
      GENERATE(Elementwise::adamw, Elementwise::sgd, Elementwise::fused);
  run_as(Form::host, 3, [&](const Group& group) {
    Pair pair(group, kind);
    for (int step = 0; step < 3; ++step) {
      pair.train(step);
      if (pair.rank == 1) {
        const torch::NoGradGuard no_grad;
        pair.sharded->eval();
        for (int i = 0; i < 3; ++i) {
          pair.loss_of(*pair.b, i);
        }
        pair.sharded->train();
      }
      reduce_tensor(torch::ones({}), Reduction::sum, group);
    }
    pair.expect_equal_state();
  });
}

TEST_CASE("one rank evaluates although nobody has stepped", "[shard]") {
  const bool skips = GENERATE(false, true);
  run_as(Form::host, 2, [&](const Group& group) {
    Pair pair(group, Elementwise::sgd);
    if (skips) {
      GradScaler scaler(GradScalerOptions().process_group(group));
      scaler.scale(pair.loss_of(*pair.b, 0) * INFINITY).backward();
      TORCH_CHECK(!scaler.step(*pair.optimizer_b));
    }
    if (pair.rank == 1) {
      const torch::NoGradGuard no_grad;
      pair.loss_of(*pair.b, 0);
    }
    reduce_tensor(torch::ones({}), Reduction::sum, group);
  });
}

TEST_CASE("shards train with autocast", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group);
    for (int step = 0; step < 3; ++step) {
      const AutocastGuard autocast(torch::kCPU);
      pair.train(step);
    }
    pair.expect_equal_state();
  });
}

TEST_CASE("two sharded models train over one group", "[shard]") {
  run(2, [](const Group& group) {
    Pair one(group, Elementwise::sgd);
    Pair two(group, Elementwise::adamw);
    for (int step = 0; step < 3; ++step) {
      one.train(step);
      two.train(step);
      const auto both = [&](auto& first, auto& second) {
        first->zero_grad();
        second->zero_grad();
        (one.loss_of(first, step) + two.loss_of(second, step)).backward();
      };
      both(*one.a, *two.a);
      both(*one.b, *two.b);
      one.optimizer_a->step();
      one.optimizer_b->step();
      two.optimizer_a->step();
      two.optimizer_b->step();
    }
    one.expect_equal_state();
    two.expect_equal_state();
  });
}

struct NarrowImpl : torch::nn::Module {
  NarrowImpl() {
    for (int layer = 0; layer < 4; ++layer) {
      layers->push_back(torch::nn::Linear(100, 100));
    }
    register_module("layers", layers);
  }
  Tensor forward(const Tensor& x) { return layers->forward(x).square().mean(); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Narrow);

TEST_CASE("shards keep float32 while bfloat16 is gathered", "[shard]") {
  run_as(Form::host, 2, [](const Group& group) {
    Narrow net, narrow;
    std::vector<Tensor> masters;
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      const torch::NoGradGuard no_grad;
      Tensor parameter = net->parameters()[i];
      parameter.copy_(torch::sin(torch::arange(parameter.numel()) * (i + 1.0))
                          .view_as(parameter));
      masters.push_back(parameter.detach().clone());
      narrow->parameters()[i].set_data(parameter.to(torch::kBFloat16));
    }
    FullyShardedDataParallel<NarrowImpl> model(
        net,
        over(group)
            .unit_cap_mb(0.04)
            .param_dtype(torch::kBFloat16)
            .reduce_dtype(torch::kFloat));
    TORCH_CHECK(net->parameters()[0].scalar_type() == torch::kBFloat16);
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    torch::optim::AdamW reference(masters, 0.01);
    for (int step = 0; step < 4; ++step) {
      const auto x =
          torch::sin(torch::arange(200.0) * (step + 1.0) + group->getRank())
              .view({2, 100})
              .to(torch::kFloat);
      optimizer.zero_grad();
      auto loss = model->forward(x);
      loss.backward();
      optimizer.step();
      narrow->zero_grad();
      auto expected = narrow->forward(x.to(torch::kBFloat16));
      Pair::expect_equal(loss.detach(), expected.detach(), "loss");
      expected.backward();
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < masters.size(); ++i) {
        masters[i].mutable_grad() = reduce_tensor(
            (narrow->parameters()[i].grad() / 2).to(torch::kFloat),
            Reduction::sum,
            group);
      }
      reference.step();
      for (size_t i = 0; i < masters.size(); ++i) {
        narrow->parameters()[i].copy_(masters[i]);
      }
      const WholeParameters rounds_nothing(*model);
    }
    const auto leaves = model->parameters();
    for (size_t i = 0; i < masters.size(); ++i) {
      Pair::expect_equal(
          torch::cat(all_gather(leaves[i].detach().flatten(), group)),
          masters[i].flatten(),
          "a leaf");
    }
  });
}

/// A complex parameter, one without elements, and one of half precision.
struct OddImpl : torch::nn::Module {
  OddImpl() {
    waves = register_parameter("waves", torch::ones({7}, torch::kComplexFloat));
    none = register_parameter("none", torch::ones({0, 3}));
    half = register_parameter("half", torch::ones({5}, torch::kBFloat16));
  }
  Tensor forward(const Tensor& x) {
    return torch::abs(waves * x).sum() + none.sum() + (half * x[0]).sum();
  }
  Tensor waves, none, half;
};
TORCH_MODULE(Odd);

TEST_CASE("shards of odd parameters", "[shard]") {
  run(3, [](const Group& group) {
    Odd plain, sharded;
    DistributedDataParallel a(
        plain, DistributedDataParallelOptions().process_group(group));
    auto b = test::in_form(form, group, [&] {
      return FullyShardedDataParallel(sharded, over(group));
    });
    torch::optim::SGD optimizer_a(a->parameters(), 0.1);
    torch::optim::SGD optimizer_b(b->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      const auto x = torch::arange(7, torch::kFloat) + group->getRank();
      const auto train = [&](auto& model, auto& optimizer) {
        optimizer.zero_grad();
        model->forward(x).backward();
        optimizer.step();
      };
      train(a, optimizer_a);
      train(b, optimizer_b);
    }
    const WholeParameters whole(*b);
    TORCH_CHECK(torch::equal(plain->waves, sharded->waves));
    TORCH_CHECK(torch::equal(plain->half, sharded->half));
  });
}

TEST_CASE("a rank may leave after its last step", "[shard]") {
  std::promise<void> has_left;
  const auto left = has_left.get_future().share();
  run_as(Form::host, 2, [&](const Group& group) {
    auto pair = std::make_unique<Pair>(group);
    pair->train(0);
    if (pair->rank == 1) {
      pair.reset();
      has_left.set_value();
    } else {
      TORCH_CHECK(left.wait_for(std::chrono::minutes(2)) ==
                  std::future_status::ready);
      const torch::NoGradGuard no_grad;
      pair->loss_of(*pair->b, 0);
    }
  });
}

TEST_CASE("whole parameters may be written to", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group);
    const torch::NoGradGuard no_grad;
    {
      const WholeParameters whole(**pair.b);
      pair.sharded->fc1->weight.fill_(3);
      *pair.sharded->wide->bias.data_ptr<double>() = 5;
    }
    pair.plain->fc1->weight.fill_(3);
    pair.plain->wide->bias[0] = 5;
    pair.expect_equal_state();
    const torch::AutoGradMode with_grad(true);
    pair.train(0);
    pair.expect_equal_state();
  });
}

TEST_CASE("shards have names, and sizes that add up", "[shard]") {
  run(3, [](const Group& group) {
    Pair pair(group);
    const auto shards = (*pair.b)->named_shards();
    const auto leaves = (*pair.b)->parameters();
    TORCH_CHECK(shards.size() == leaves.size());
    TORCH_CHECK(shards.size() + 1 == pair.sharded->named_parameters().size(),
                "a tied parameter is one");
    for (size_t i = 0; i < leaves.size(); ++i) {
      TORCH_CHECK(shards.items()[i].value().is_same(leaves[i]));
      const Tensor whole = pair.plain->named_parameters()[shards[i].key()];
      TORCH_CHECK(leaves[i].requires_grad() == whole.requires_grad());
      TORCH_CHECK(leaves[i].dim() == std::max<int64_t>(whole.dim(), 1));
      const auto numel = reduce_tensor(
          torch::tensor(leaves[i].numel()), Reduction::sum, group);
      TORCH_CHECK(numel.item<int64_t>() == whole.numel());
    }
  });
}

TEST_CASE("access to memory that is not there is an error", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group, Elementwise::sgd);
    auto& net = *pair.sharded;
    pair.train(0);
    const auto refused = [](const auto& call) {
      expect_error("Expected a forward of the FullyShardedDataParallel", call);
    };
    refused([&] { net.fc1->weight.sum(); });
    refused([&] { net.fc1->weight.data_ptr(); });
    refused([&] { net.fc1->weight.data_ptr<float>(); });
    refused([&] { net.fc1->weight.clone(); });
    refused([&] { net.scale.item<float>(); });
    refused([&] { net.forward(test::input_of(0, 0)); });
    refused([&] { net.to(torch::kDouble); });
    std::ostringstream file;
    refused([&] { torch::save(pair.sharded, file); });
    refused([&] { torch::save(*pair.b, file); });
    expect_error("that is not wrapped yet",
                 [&] { (*pair.b)->to(torch::kDouble); });
    pair.train(1);
  });
}

TEST_CASE("writing to a sharded parameter is an error", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group, Elementwise::sgd);
    auto& net = *pair.sharded;
    const torch::NoGradGuard no_grad;
    pair.loss_of(*pair.b, 0);
    const auto refused = [](const auto& call) {
      expect_error("which writes to one", call);
    };
    refused([&] { net.fc1->weight.zero_(); });
    refused([&] { torch::nn::init::xavier_uniform_(net.fc1->weight); });
    refused([&] { net.fc1->weight.view({-1}).add_(1); });
    refused([&] { torch::add_out(net.fc1->weight, net.fc1->weight, 1); });
    if (pair.rank == 0) {  // LibTorch has statics without locks there
      refused([&] {
        torch::optim::SGD foreign(net.parameters(), 0.1);
        for (auto& parameter : net.parameters()) {
          parameter.mutable_grad() = torch::zeros_like(parameter);
        }
        foreign.step();
      });
    }
    net.zero_grad();
    std::stringstream file;
    torch::save(pair.plain, file);
    refused([&] { torch::load(pair.sharded, file); });
  });
}

TEST_CASE("a step after the next forward has begun is an error", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group, Elementwise::sgd);
    pair.loss_of(*pair.b, 0).backward();
    {
      const torch::NoGradGuard no_grad;
      pair.loss_of(*pair.b, 0);
    }
    expect_error("Expected the optimizer's step after backward()",
                 [&] { pair.optimizer_b->step(); });
  });
}

TEST_CASE("a backward pass of parameters that have changed is an error",
          "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group, Elementwise::sgd);
    auto old = pair.loss_of(*pair.b, 0);
    pair.train(1);
    expect_error("Expected a forward", [&] { old.backward(); });
  });
  run(2, [](const Group& group) {
    Pair pair(group, Elementwise::sgd);
    auto old = pair.loss_of(*pair.b, 0);
    pair.train(1);
    pair.loss_of(*pair.b, 2);
    expect_error("modified by an inplace operation", [&] { old.backward(); });
  });
}

TEST_CASE("other memory of a sharded parameter is an error", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group);
    auto& weight = pair.sharded->fc1->weight;
    weight.set_data(torch::zeros_like(weight));
    expect_error("Expected parameter fc1.weight to keep the memory",
                 [&] { pair.loss_of(*pair.b, 0); });
  });
}

TEST_CASE("changes of leaves alone are errors of the next forward", "[shard]") {
  run(2, [](const Group& group) {
    const auto refused = [&](const std::string& words, const auto& change) {
      Pair pair(group, Elementwise::sgd);
      pair.loss_of(*pair.b, 0).backward();
      change((*pair.b)->named_shards());
      expect_error(words, [&] { pair.loss_of(*pair.b, 1); });
    };
    refused("Expected the leaf of parameter fc1.weight to keep its memory",
            [](const auto& leaves) {
              leaves["fc1.weight"].set_data(leaves["fc1.weight"].clone());
            });
    refused("Expected hooks on parameter fc1.weight of the module",
            [](const auto& leaves) {
              leaves["fc1.weight"].register_hook(
                  [](const Tensor& grad) { return grad * 2; });
            });
    refused("Expected requires_grad of parameter fc1.weight of the module",
            [](const auto& leaves) {
              leaves["fc1.weight"].set_requires_grad(false);
            });
    refused(
        "Expected requires_grad of parameter fc1.bias of the module",
        [](const auto& leaves) { leaves["fc1.bias"].set_requires_grad(true); });
  });
  run(2, [](const Group& group) {
    Pair pair(group, Elementwise::sgd);
    for (const auto& weight : {pair.plain->fc1->weight,
                               pair.sharded->fc1->weight,
                               (*pair.b)->named_shards()["fc1.weight"]}) {
      weight.requires_grad_(false);
    }
    pair.train(0);
    pair.expect_equal_state();
  });
}

TEST_CASE("operators over all elements of a leaf are errors", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group);
    pair.loss_of(*pair.b, 0).backward();
    const torch::NoGradGuard no_grad;
    for (const auto& tensor : {(*pair.b)->parameters().back(),
                               (*pair.b)->parameters().back().grad()}) {
      const auto refused = [](const auto& call) {
        expect_error("got this rank's part of a", call);
      };
      refused([&] { tensor.norm(); });
      refused([&] { tensor.data().sum(); });
      refused([&] { tensor.detach().mean(); });
      refused([&] { tensor.max(); });
      refused([&] { tensor.square(); });
      refused([&] { tensor.pow(2); });
      refused([&] { torch::isnan(tensor); });
      refused([&] { torch::isfinite(tensor); });
      refused([&] { torch::nn::utils::parameters_to_vector({tensor}); });
      tensor.clone().sum();
    }
    expect_error("in the scope of a ddp::WholeParameters", [&] {
      torch::nn::init::xavier_uniform_((*pair.b)->parameters()[0]);
    });
  });
}

TEST_CASE("operators over all elements of a gradient are errors", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group);
    pair.loss_of(*pair.b, 0).backward();
    const auto leaves = (*pair.b)->parameters();
    const auto refused = [](const auto& call) {
      expect_error("model->clip_grad_norm_", call);
    };
    refused([&] { torch::nn::utils::clip_grad_norm_(leaves, 1); });
    refused([&] { torch::nn::utils::clip_grad_norm_(leaves, 1, INFINITY); });
    refused([&] { leaves.back().grad().norm(); });
    std::vector<Tensor> trained;
    for (const auto& leaf : leaves) {
      if (leaf.requires_grad() && leaf.scalar_type() == torch::kFloat) {
        trained.push_back(leaf);
      }
    }
    torch::optim::LBFGS lbfgs(trained);
    refused([&] { lbfgs.step([] { return torch::zeros({}); }); });
  });
}

TEST_CASE("objects that expect equal parameters refuse shards", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group);
    const auto leaves = (*pair.b)->parameters();
    const std::string words = "that all ranks have alike for ";
    expect_error(words + "ZeroRedundancyOptimizer", [&] {
      ZeroRedundancyOptimizer(
          leaves,
          [](const auto& groups) {
            return std::make_unique<torch::optim::SGD>(
                groups, torch::optim::SGDOptions(0.1));
          },
          group);
    });
    expect_error(words + "ModelAverager", [&] {
      ModelAverager(ModelAveragerOptions(1).process_group(group))
          .average_parameters(leaves);
    });
    GradScaler scaler;
    scaler.scale(pair.loss_of(*pair.b, 0)).backward();
    expect_error(words + "a GradScaler without a process_group",
                 [&] { scaler.step(*pair.optimizer_b); });
    expect_error("is one of a FullyShardedDataParallel", [&] {
      DistributedDataParallel model(
          pair.sharded, DistributedDataParallelOptions().process_group(group));
    });
  });
}

TEST_CASE("the gradients of the module's own parameters are errors",
          "[shard]") {
  run(2, [](const Group& group) {
    ShardedNet net;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto model =
        test::in_form(form, group, [&] { return Sharded(net, over(group)); });
    model->forward(test::input_of(0, 0)).sum().backward();
    const auto refused = [](const auto& call) {
      expect_error("give model->parameters() to the optimizer", call);
    };
    refused([&] { optimizer.step(); });
    expect_error("Expected a forward of the FullyShardedDataParallel",
                 [&] { FusedSGD(net->fc1->parameters(), 0.1).step(); });
    refused([&] { torch::nn::utils::clip_grad_norm_(net->parameters(), 1); });
    refused([&] { net->fc1->weight.grad().norm(); });
    refused([&] { net->fc1->weight.grad().data_ptr<float>(); });
    refused([&] { net->zero_grad(/*set_to_none=*/false); });
    // Local passes leave gradients with values.
    const NoSyncGuard guard(*model);
    model->forward(test::input_of(0, 0)).sum().backward();
    TORCH_CHECK(net->fc1->weight.grad().norm().item<float>() > 0);
  });
}

TEST_CASE("a gradient that is assigned to a sharded parameter is an error",
          "[shard]") {
  const bool follows_passes = GENERATE(false, true);
  run(2, [&](const Group& group) {
    ShardedNet net;
    net->forward(test::input_of(0, 0)).sum().backward();
    auto model =
        test::in_form(form, group, [&] { return Sharded(net, over(group)); });
    const auto loss = [&] {
      return model->forward(test::input_of(0, 0)).sum();
    };
    const auto& weight = net->fc1->weight;
    TORCH_CHECK(!weight.grad().defined());
    if (follows_passes) {
      {
        const NoSyncGuard guard(*model);
        loss().backward();
      }
      loss().backward();
    }
    const auto grad = torch::autograd::grad({loss()}, {weight}).front();
    weight.mutable_grad() = grad;
    expect_error("of the module to come from backward()", loss);
    model->zero_grad();
    {
      const NoSyncGuard guard(*model);
      loss().backward();
    }
    weight.mutable_grad() = grad;  // of a local pass
    loss().backward();
  });
}

TEST_CASE("gradients of local passes are dropped with those of the leaves",
          "[shard]") {
  const bool has_mean = GENERATE(false, true);
  enum class By { optimizer, module, wrapper, wrapper_in_place };
  const auto by =
      GENERATE(By::optimizer, By::module, By::wrapper, By::wrapper_in_place);
  CAPTURE(has_mean, static_cast<int>(by));
  run(2, [&](const Group& group) {
    Pair pair(group, Elementwise::sgd);
    for (int step = 0; step < 3; ++step) {
      const auto run = [&](auto& net, auto& model, auto& optimizer) {
        if (has_mean) {
          pair.loss_of(model, 10 + step).backward();
        }
        {
          const NoSyncGuard guard(*model);
          pair.loss_of(model, 20 + step).backward();
        }
        if (by == By::optimizer) {
          optimizer.zero_grad();
        } else if (by == By::module) {
          net->zero_grad();
        } else {
          model->zero_grad(by == By::wrapper);
        }
        {
          const NoSyncGuard guard(*model);
          pair.loss_of(model, 30 + step).backward();
        }
        pair.loss_of(model, step).backward();
        optimizer.step();
        optimizer.zero_grad();
      };
      run(pair.plain, *pair.a, *pair.optimizer_a);
      run(pair.sharded, *pair.b, *pair.optimizer_b);
    }
    pair.expect_equal_state();
  });
}

/// Returns 0; its backward returns an undefined gradient.
struct Silent : torch::autograd::Function<Silent> {
  static Tensor forward(torch::autograd::AutogradContext* /*context*/,
                        const Tensor& /*weight*/) {
    return torch::zeros({});
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      const torch::autograd::variable_list& /*gradients*/) {
    return {Tensor()};
  }
};

TEST_CASE("a local pass without a gradient keeps the mean of a shard",
          "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group,
              Elementwise::sgd,
              FullyShardedDataParallelOptions().find_unused_parameters(true));
    const auto run = [&](auto& net, auto& model, auto& optimizer) {
      pair.loss_of(model, 0).backward();
      net->uses_spare = false;
      {
        const NoSyncGuard guard(*model);
        (pair.loss_of(model, 1) + Silent::apply(net->spare->weight)).backward();
      }
      pair.loss_of(model, 2).backward();
      optimizer.step();
    };
    run(pair.plain, *pair.a, *pair.optimizer_a);
    run(pair.sharded, *pair.b, *pair.optimizer_b);
    const WholeParameters whole(**pair.b);
    Pair::expect_equal(
        pair.plain->spare->weight, pair.sharded->spare->weight, "a weight");
  });
}

TEST_CASE("a step after local passes alone is an error", "[shard]") {
  const auto kind =
      GENERATE(Elementwise::sgd, Elementwise::fused_sgd, Elementwise::adamw);
  run(2, [&](const Group& group) {
    Pair pair(group, kind);
    const auto make_local_pass = [&pair](auto& model) {
      const NoSyncGuard guard(*model);
      pair.loss_of(model, 0).backward();
    };
    make_local_pass(*pair.a);
    make_local_pass(*pair.b);
    const std::string words = "outside of a ddp::NoSyncGuard";
    expect_error(words, [&] { pair.optimizer_b->step(); });
    expect_error(words, [&] { (*pair.b)->parameters()[0].grad().add(1); });
    expect_error(words, [&] { pair.optimizer_b->zero_grad(false); });
    if (kind != Elementwise::adamw) {  // has counted the step
      pair.train(1);
      pair.expect_equal_state();
    }
  });
}

TEST_CASE("a gradient of a leaf that changes after a local pass is an error",
          "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group, Elementwise::sgd);
    pair.loss_of(*pair.b, 0).backward();
    {
      const NoSyncGuard guard(**pair.b);
      pair.loss_of(*pair.b, 1).backward();
    }
    pair.optimizer_b->zero_grad(/*set_to_none=*/false);
    expect_error("to stay as they are",
                 [&] { pair.loss_of(*pair.b, 2).backward(); });
  });
}

TEST_CASE("a backward pass over whole parameters is an error", "[shard]") {
  const auto run_in = [](Form as) {
    run_as(as, 2, [](const Group& group) {
      Pair pair(group);
      expect_error("no backward pass of a FullyShardedDataParallel", [&] {
        const WholeParameters whole(**pair.b);
        pair.sharded->forward(test::input_of(0, 0)).sum().backward();
      });
    });
  };
  run_in(Form::host);
  run_in(Form::gathered);
}

TEST_CASE("torch::load over whole parameters is an error", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group);
    std::stringstream file;
    torch::save(pair.plain, file);
    const WholeParameters whole(**pair.b);
    expect_error("load by ddp::Checkpoint",
                 [&] { torch::load(pair.sharded, file); });
  });
}

TEST_CASE("gradients of shards are reset by the module", "[shard]") {
  const bool is_after_forward = GENERATE(false, true);
  const bool calls_grad = GENERATE(false, true);  // before or after the reset
  CAPTURE(is_after_forward, calls_grad);
  run(2, [&](const Group& group) {
    Pair pair(group, Elementwise::sgd);
    for (int step = 0; step < 3; ++step) {
      const auto run = [&](auto& net, auto& model, auto& optimizer) {
        if (!is_after_forward) {
          net->zero_grad();
        }
        const auto loss = pair.loss_of(model, step);
        if (calls_grad) {
          torch::autograd::grad(
              {loss}, {net->fc1->weight}, {}, /*retain_graph=*/true);
        }
        if (is_after_forward) {
          net->zero_grad();
        }
        loss.backward();
        optimizer.step();
      };
      run(pair.plain, *pair.a, *pair.optimizer_a);
      run(pair.sharded, *pair.b, *pair.optimizer_b);
    }
    pair.expect_equal_state();
    pair.loss_of(*pair.b, 0).backward();
    const auto leaf = (*pair.b)->parameters().back();
    TORCH_CHECK(leaf.grad().defined());
    (*pair.b)->zero_grad();
    TORCH_CHECK(!leaf.grad().defined());
    (*pair.b)->zero_grad(/*set_to_none=*/false);
    pair.loss_of(*pair.b, 0).backward();
    TORCH_CHECK(leaf.grad().defined());
    pair.sharded->zero_grad();
    TORCH_CHECK(!leaf.grad().defined());
  });
}

TEST_CASE("modules that cannot be sharded are errors on all ranks", "[shard]") {
  const auto refused = [](const std::string& words, const auto& change) {
    const auto errors = test::try_ranks(2, [&](const Group& group) {
      ShardedNet net;
      Tensor kept;
      change(*net, kept);
      Sharded model(net, over(group));
    });
    for (const auto& error : errors) {
      CHECK_THAT(error, Catch::Contains(words));
    }
  };
  refused("but fc1.weight shares its memory with another tensor",
          [](auto& net, Tensor& kept) { kept = net.fc1->weight.detach(); });
  refused("but fc1.weight has gradients of another dtype",
          [](auto& net, Tensor&) {
            net.fc1->weight.set_grad_dtype(torch::kDouble);
          });
  refused("but rows.weight has sparse gradients", [](auto& net, Tensor&) {
    net.register_module(
        "rows",
        torch::nn::Embedding(torch::nn::EmbeddingOptions(3, 3).sparse(true)));
  });
  refused("but fc1.weight is not dense in memory", [](auto& net, Tensor&) {
    net.fc1->weight.set_data(torch::zeros({150, 22}).narrow(1, 0, 11));
  });
}

TEST_CASE("unsupported calls of sharded models are errors", "[shard]") {
  run(2, [](const Group& group) {
    Pair pair(group);
    expect_error("Expected a model without shards for update_process_group",
                 [&] { (*pair.b)->update_process_group(group); });
    expect_error("is one of a FullyShardedDataParallel",
                 [&] { Sharded again(pair.sharded, over(group)); });
    expect_error("each rank of which steps a part",
                 [&] { const Join join({**pair.b}); });
  });
  CHECK_THROWS_WITH(
      Sharded(ShardedNet(), FullyShardedDataParallelOptions().unit_cap_mb(0)),
      Catch::Contains("unit_cap_mb to be positive"));
  ShardedNet net;
  const c10::InferenceMode inference;
  CHECK_THROWS_WITH(Sharded(net), Catch::Contains("of an InferenceMode"));
}

}  // namespace fully_sharded_test
}  // namespace ddp
