// Random training programs, each determined by a seed, on replicas and on the
// plain module with whole batches. All values are multiples of a power of two
// that double represents exactly, so the order of sums does not matter. To run
// more of them:
//   DDP_TEST_SECONDS=0 DDP_PROGRAMS=10000 DDP_PROGRAMS_SEED=100
//   dp_test "random programs*"
#include <algorithm>
#include <numeric>
#include <sstream>

#include <torch/autograd.h>
#include <torch/nn/cloneable.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/nn/checkpoint_activations.h"
#include "dp/dp.h"
#include "test/dp/nets.h"
#include "test/support/catch.h"
#include "test/support/dice.h"
#include "test/support/number_from.h"

namespace dp {
namespace random_programs_test {

using ddp::test::Dice;
using ddp::test::number_from;
using test::cpus;
using torch::Tensor;

constexpr int64_t kFeatures = 3;
constexpr int64_t kRows = 5;  // of an embedding

Tensor numbers(Dice& dice, at::IntArrayRef sizes, int limit) {
  auto all = torch::empty(sizes, torch::kDouble);
  for (int64_t i = 0; i < all.numel(); ++i) {
    all.mutable_data_ptr<double>()[i] = dice.below(2 * limit + 1) - limit;
  }
  return all;
}

enum class Kind { weight, product, tied, branch, rows, frozen, kept };
constexpr int kKinds = 7;

/// A part of the module, which adds a term to each row's result.
struct Part {
  Kind kind = Kind::weight;
  bool is_sparse = false;
  bool is_float = false;
};

/// A submodule, so that a program can replace parts.
struct PartImpl : torch::nn::Cloneable<PartImpl> {
  explicit PartImpl(const Part& part) : part(part) { reset(); }

  void reset() override {
    const auto dtype = part.is_float ? torch::kFloat : torch::kDouble;
    const auto rows = part.kind == Kind::rows ? kRows : 1;
    weight = register_parameter("weight",
                                torch::ones({rows, kFeatures}, dtype).mul_(0.5),
                                part.kind != Kind::frozen);
    shift = register_buffer("shift", torch::ones({kFeatures}, dtype));
    if (part.kind == Kind::product) {
      factor = register_parameter("factor", torch::ones({1, kFeatures}, dtype));
    }
  }

  Tensor forward(const Tensor& x, const Tensor& index) {
    const auto with = [this](const Tensor& value, const Tensor& by) {
      return (value.to(by.scalar_type()) * by + shift).sum(1).to(at::kDouble);
    };
    switch (part.kind) {
      case Kind::product:
        return with(x, weight * factor);
      case Kind::rows:
        return with(x,
                    torch::embedding(weight,
                                     index,
                                     /*padding_idx=*/-1,
                                     /*scale_grad_by_freq=*/false,
                                     part.is_sparse));
      case Kind::branch: {
        const auto chosen = x.select(1, 0).detach() > 0;
        return chosen.any().item<bool>()
                   ? with(x, weight) * chosen.to(at::kDouble)
                   : x.new_zeros({x.size(0)});
      }
      case Kind::kept:
        return ddp::checkpoint_activations(
            [this, with](const Tensor& y) { return with(y, weight); }, x);
      default:
        return with(x, weight);
    }
  }

  Part part;
  Tensor weight, factor, shift;
};

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  explicit NetImpl(std::vector<Part> parts) : parts(std::move(parts)) {
    reset();
  }

  void reset() override {
    modules.clear();
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool is_tied = parts[i].kind == Kind::tied && i > 0;
      modules.push_back(is_tied ? modules[0]
                                : std::make_shared<PartImpl>(parts[i]));
      register_module("part" + std::to_string(i), modules.back());
    }
  }

  Tensor forward(const Tensor& x, const Tensor& index, bool spoils) {
    TORCH_CHECK(!spoils || (x.select(1, 1) != 100).all().item<bool>(),
                "spoiled by the test");
    auto result = x.new_zeros({x.size(0)});
    for (const auto& module : modules) {
      result = result + module->forward(x, index);
    }
    return is_training() ? result : result * 2;
  }

  std::vector<Part> parts;
  std::vector<std::shared_ptr<PartImpl>> modules;
};
TORCH_MODULE(Net);

/// The plain module or the module with replicas, and its optimizer.
struct Side {
  Side(const std::vector<Part>& parts, double momentum)
      : net(parts), optimizer(net->parameters(), options(momentum)) {}
  static torch::optim::SGDOptions options(double momentum) {
    return torch::optim::SGDOptions(0.125).momentum(momentum);
  }
  Net net;
  torch::optim::SGD optimizer;
  std::vector<Tensor> losses;
};

std::string difference(Side& got, Side& wanted) {
  const auto differ = [](const Tensor& a, const Tensor& b) {
    if (a.defined() != b.defined()) {
      return true;
    }
    return a.defined() && (a.layout() != b.layout() || a.dtype() != b.dtype() ||
                           !torch::equal(a.to_dense(), b.to_dense()));
  };
  const auto a = got.net->named_parameters();
  const auto b = wanted.net->named_parameters();
  for (const auto& item : a) {
    const auto& other = b[item.key()];
    if (differ(item.value(), other)) {
      return c10::str(item.key(), " is ", item.value(), ", not ", other);
    }
    if (differ(item.value().grad(), other.grad())) {
      return c10::str(
          item.key(), ".grad is ", item.value().grad(), ", not ", other.grad());
    }
  }
  for (const auto& item : got.net->named_buffers()) {
    if (differ(item.value(), wanted.net->named_buffers()[item.key()])) {
      return item.key() + " differs";
    }
  }
  return "";
}

/// Plays one program and returns the first difference; told() describes its
/// acts.
class Game {
 public:
  explicit Game(uint64_t seed) : dice_(seed) {
    std::vector<Part> parts(dice_.below(5) + 1);
    told_ << "seed " << seed << ":";
    for (auto& part : parts) {
      part = {static_cast<Kind>(dice_.below(kKinds)),
              dice_.chance(50),
              dice_.chance(20)};
      told_ << " part " << static_cast<int>(part.kind)
            << (part.is_sparse ? " sparse" : "")
            << (part.is_float ? " float" : "");
    }
    const double momentum = dice_.chance(30) ? 0.5 : 0;
    ours_ = std::make_unique<Side>(parts, momentum);
    plain_ = std::make_unique<Side>(parts, momentum);
    wrap();
  }

  std::string play() {
    const int acts = dice_.below(12) + 3;
    for (int act = 0; act < acts; ++act) {
      perform();
      const auto wrong = difference(*ours_, *plain_);
      if (!wrong.empty()) {
        return wrong;
      }
    }
    return "";
  }

  std::string told() const { return told_.str(); }

 private:
  void wrap() {
    const int count = dice_.below(5) + 1;
    DataParallelOptions options;
    options.devices(cpus(count));
    sizes_.clear();
    if (dice_.chance(30)) {
      for (int i = 0; i < count; ++i) {
        sizes_.push_back(dice_.below(3));
      }
      sizes_[dice_.below(count)] = 2;
      options.chunk_sizes(sizes_);
    }
    told_ << "\nwrap " << count << " " << sizes_;
    model_ = std::make_unique<DataParallel<NetImpl>>(ours_->net, options);
  }

  template <typename Act>
  void both(const Act& act) {
    for (Side* side : {ours_.get(), plain_.get()}) {
      act(*side);
    }
  }

  /// Runs a forward on both sides, each with a copy of the input. Results and
  /// gradients of the inputs have to be equal.
  void forward(bool spoils) {
    const auto asked =
        std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
    const int rows = asked > 0          ? static_cast<int>(asked)
                     : dice_.chance(10) ? 0
                                        : dice_.below(9) + 1;
    auto x = numbers(dice_, {rows, kFeatures}, 3);
    const auto index =
        numbers(dice_, {rows, 1}, 2).add_(2).to(torch::kLong).view({rows});
    const auto slope = numbers(dice_, {rows}, 2);
    told_ << "\nforward " << rows << (spoils ? " spoiled" : "");
    if (spoils && rows > 0) {
      x[dice_.below(rows)][1] = 100;
    }
    const bool wants = dice_.chance(30);
    const auto mine = x.clone().requires_grad_(wants);
    const auto other = x.clone().requires_grad_(wants);
    std::string error;
    Tensor result;
    try {
      result = (*model_)(mine, index, spoils);
    } catch (const c10::Error& caught) {
      error = caught.what_without_backtrace();
    }
    if (spoils && rows > 0) {
      TORCH_CHECK(error.find("spoiled by the test") != std::string::npos,
                  "Expected the module's error, but got ",
                  error);
      return;
    }
    TORCH_CHECK(error.empty(), error);
    const auto expected = plain_->net->forward(other, index, spoils);
    TORCH_CHECK(torch::equal(result, expected), "the result");
    if (!torch::GradMode::is_enabled() || !expected.requires_grad()) {
      return;
    }
    ours_->losses.push_back((result * slope).sum());
    plain_->losses.push_back((expected * slope).sum());
    if (wants) {
      inputs_.emplace_back(mine, other);
    }
  }

  void backward() {
    told_ << "\nbackward " << ours_->losses.size();
    const bool together = dice_.chance(50);
    both([&](Side& side) {
      if (side.losses.empty()) {
        return;
      }
      if (together) {
        torch::stack(side.losses).sum().backward();
      } else {
        for (auto& loss : side.losses) {
          loss.backward();
        }
      }
      side.losses.clear();
    });
    for (const auto& [mine, other] : inputs_) {
      TORCH_CHECK(mine.grad().defined() == other.grad().defined() &&
                      (!mine.grad().defined() ||
                       torch::equal(mine.grad(), other.grad())),
                  "the input's gradient");
    }
    inputs_.clear();
  }

  void perform() {
    switch (dice_.below(14)) {
      case 0:
        if (ours_->losses.empty()) {
          wrap();
        }
        return;
      case 1: {
        const torch::NoGradGuard no_grad;
        return forward(false);
      }
      case 2:
        return forward(true);
      case 3:
        return must_wait() ? void() : freeze();
      case 4:
        told_ << "\nchange";
        if (ours_->losses.empty()) {
          change();
        }
        return;
      case 5: {
        const bool trains = dice_.chance(50);
        told_ << "\ntrain " << trains;
        return both([&](Side& side) { side.net->train(trains); });
      }
      case 6:
        if (ours_->losses.empty()) {
          replace();
        }
        return;
      case 7:
        if (!must_wait()) {
          told_ << "\nremake";
          (*model_)->remake_replicas();
        }
        return;
      case 8:
      case 9:
        backward();
        return step();
      default:
        forward(false);
        if (dice_.chance(60)) {
          backward();
        }
    }
  }

  /// Returns whether a backward pass has to come first: recomputed activations
  /// need the replicas unchanged.
  bool must_wait() const {
    const auto& parts = ours_->net->parts;
    return !ours_->losses.empty() &&
           std::any_of(parts.begin(), parts.end(), [](const Part& part) {
             return part.kind == Kind::kept;
           });
  }

  void step() {
    const int zero = dice_.below(3);
    told_ << "\nstep, zero " << zero;
    both([&](Side& side) {
      side.optimizer.step();
      if (zero > 0) {
        side.optimizer.zero_grad(/*set_to_none=*/zero == 1);
      }
    });
  }

  void freeze() {
    const auto part = dice_.below(static_cast<int>(ours_->net->modules.size()));
    told_ << "\nfreeze or thaw " << part;
    both([&](Side& side) {
      auto& weight = side.net->modules[part]->weight;
      weight.requires_grad_(!weight.requires_grad());
    });
  }

  /// Changes values without the optimizer.
  void change() {
    const auto part = dice_.below(static_cast<int>(ours_->net->modules.size()));
    const bool by_data = dice_.chance(50);
    both([&](Side& side) {
      const torch::NoGradGuard no_grad;
      auto& module = *side.net->modules[part];
      module.shift.add_(1);
      if (by_data) {
        module.weight.set_data(module.weight.detach().clone().mul_(2));
      } else {
        module.weight.div_(2);
      }
    });
  }

  /// Replaces a part by a new one of its kind, and resets the optimizer.
  void replace() {
    const auto part = dice_.below(static_cast<int>(ours_->net->modules.size()));
    const auto& all = ours_->net->modules;
    if (std::count(all.begin(), all.end(), all[part]) > 1) {
      return;  // clones would tie untied parts again
    }
    told_ << "\nreplace " << part;
    both([&](Side& side) {
      auto& module = side.net->modules[part];
      module = std::make_shared<PartImpl>(module->part);
      side.net->replace_module("part" + std::to_string(part), module);
      side.optimizer.param_groups()[0].params() = side.net->parameters();
      side.optimizer.state().clear();  // keyed by addresses, maybe reused
    });
  }

  Dice dice_;
  std::ostringstream told_;
  std::unique_ptr<Side> ours_, plain_;
  std::unique_ptr<DataParallel<NetImpl>> model_;
  std::vector<int64_t> sizes_;  // the wrapper's chunk_sizes
  std::vector<std::pair<Tensor, Tensor>> inputs_;
};

TEST_CASE("random programs train as the plain module does", "[dp]") {
  const uint64_t count = number_from("DDP_PROGRAMS", 50);
  const uint64_t first = number_from("DDP_PROGRAMS_SEED", 1);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Game game(seed);
    std::string wrong;
    try {
      wrong = game.play();
    } catch (const c10::Error& error) {
      wrong = error.what_without_backtrace();
    }
    INFO(game.told());
    CHECK(wrong == "");
  }
}

}  // namespace random_programs_test
}  // namespace dp
