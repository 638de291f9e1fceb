#include "ddp/checkpoint/detail/checkpoint_entry.h"

#include <string>
#include <utility>
#include <vector>

#include "ddp/base/text/record.h"
#include "ddp/checkpoint/detail/averager_state.h"
#include "ddp/checkpoint/module_state.h"
#include "ddp/checkpoint/optimizer_state.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/job/text_collectives.h"
#include "ddp/optim/averaging_optimizer.h"
#include "ddp/optim/zero_redundancy_optimizer.h"

namespace ddp::detail {
namespace {

using c10::IValue;
using torch::optim::Optimizer;

class ModuleEntry : public CheckpointEntry {
 public:
  explicit ModuleEntry(std::shared_ptr<torch::nn::Module> module)
      : module_(std::move(module)) {}

  MakeValue collect(const Ranks& /*ranks*/,
                    std::optional<size_t> /*trained*/) const override {
    return [module = module_] { return to_value(state_dict(*module)); };
  }
  Apply check(const IValue& saved, RankInfo /*place*/) const override {
    return [module = module_,
            tensors = match(*module_, to_state_dict(saved)).tensors] {
      copy_into(*module, tensors);
    };
  }
  const torch::nn::Module* module() const override { return module_.get(); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

/// In a shared_ptr, because std::function requires copyable captures.
std::shared_ptr<OptimizerUpdate> shared_update(const Optimizer& optimizer,
                                               const IValue& saved) {
  return std::make_shared<OptimizerUpdate>(read_optimizer(optimizer, saved));
}

class OptimizerEntry : public CheckpointEntry {
 public:
  explicit OptimizerEntry(Optimizer& optimizer) : optimizer_(optimizer) {}

  MakeValue collect(const Ranks& /*ranks*/,
                    std::optional<size_t> /*trained*/) const override {
    return [this] { return optimizer_to_value(optimizer_); };
  }
  Apply check(const IValue& saved, RankInfo /*place*/) const override {
    return [this, update = shared_update(optimizer_, saved)] {
      apply(std::move(*update), optimizer_);
    };
  }

 private:
  Optimizer& optimizer_;
};

/// The optimizer's dict with the averager's entries added, as in PyTorch's
/// PostLocalSGDOptimizer.state_dict().
class AveragingOptimizerEntry : public CheckpointEntry {
 public:
  AveragingOptimizerEntry(Optimizer& optimizer,
                          std::shared_ptr<ModelAverager> averager)
      : optimizer_(optimizer), averager_(std::move(averager)) {}

  MakeValue collect(const Ranks& /*ranks*/,
                    std::optional<size_t> /*trained*/) const override {
    return [this] {
      auto dict = optimizer_to_value(optimizer_).toGenericDict();
      insert_averager(*averager_, dict);
      return dict;
    };
  }
  Apply check(const IValue& saved, RankInfo /*place*/) const override {
    return [this,
            update = shared_update(optimizer_, saved),
            apply_averager = read_averager(*averager_, saved)] {
      apply(std::move(*update), optimizer_);
      apply_averager();
    };
  }

 private:
  Optimizer& optimizer_;
  std::shared_ptr<ModelAverager> averager_;
};

class AveragerEntry : public CheckpointEntry {
 public:
  explicit AveragerEntry(ModelAverager& averager) : averager_(averager) {}

  MakeValue collect(const Ranks& /*ranks*/,
                    std::optional<size_t> /*trained*/) const override {
    return [this] {
      auto dict = new_dict().toGenericDict();
      insert_averager(averager_, dict);
      return dict;
    };
  }
  Apply check(const IValue& saved, RankInfo /*place*/) const override {
    return read_averager(averager_, saved);
  }

 private:
  ModelAverager& averager_;
};

/// Saves the whole state, gathered on rank 0; when loading, each rank keeps its
/// part of the whole state.
class ShardedOptimizerEntry : public CheckpointEntry {
 public:
  explicit ShardedOptimizerEntry(ZeroRedundancyOptimizer& optimizer)
      : optimizer_(optimizer) {}

  MakeValue collect(const Ranks& /*ranks*/,
                    std::optional<size_t> /*trained*/) const override {
    return [whole = std::shared_ptr<Optimizer>(optimizer_.consolidate())] {
      return optimizer_to_value(*whole);
    };
  }
  Apply check(const IValue& saved, RankInfo /*place*/) const override {
    const std::shared_ptr<Optimizer> whole = optimizer_.make_whole();
    return [this, whole, update = shared_update(*whole, saved)] {
      apply(std::move(*update), *whole);
      optimizer_.take(*whole);
    };
  }

 private:
  ZeroRedundancyOptimizer& optimizer_;
};

class SamplerEntry : public CheckpointEntry {
 public:
  explicit SamplerEntry(DistributedSampler sampler)
      : sampler_(std::move(sampler)) {}

  MakeValue collect(const Ranks& ranks,
                    std::optional<size_t> trained) const override {
    std::vector<SamplerProgress> by_rank;
    for (const auto& text : ranks.gather(to_text(sampler_.progress(trained)))) {
      by_rank.push_back(progress_in(text));
    }
    return [state = sampler_.state(by_rank)] {
      auto ahead = new_list();
      for (const auto place : state.ahead) {
        ahead.toList().push_back(place);
      }
      auto dict = new_dict().toGenericDict();
      dict.insert("epoch", state.epoch);
      dict.insert("position", state.position);
      dict.insert("dataset_size", state.dataset_size);
      dict.insert("seed", static_cast<int64_t>(state.seed));
      dict.insert("shuffle", state.shuffle);
      dict.insert("ahead", ahead);
      return dict;
    };
  }
  Apply check(const IValue& saved, RankInfo /*place*/) const override {
    const DictReader dict(saved, "sampler");
    const SamplerState state{dict.integer("epoch"),
                             dict.integer("position"),
                             dict.integer("dataset_size"),
                             static_cast<uint64_t>(dict.integer("seed")),
                             dict.boolean("shuffle"),
                             places_in(dict)};
    sampler_.check_state(state);
    return [sampler = sampler_, state]() mutable { sampler.load_state(state); };
  }

 private:
  static std::string to_text(const SamplerProgress& progress) {
    return join_fields({std::to_string(progress.rank),
                        std::to_string(progress.done),
                        std::to_string(progress.in_pass)});
  }
  static SamplerProgress progress_in(const std::string& text) {
    const auto fields = fields_of(text);
    SamplerProgress progress;
    progress.rank = std::stoull(fields.at(0));
    progress.done = std::stoull(fields.at(1));
    progress.in_pass = fields.at(2) == "1";
    return progress;
  }
  static std::vector<int64_t> places_in(const DictReader& dict) {
    std::vector<int64_t> places;
    for (const auto& place : dict.list("ahead")) {
      TORCH_CHECK(place.isInt(),
                  "expected ints as its sampler[\"ahead\"], but got ",
                  describe(place));
      places.push_back(place.toInt());
    }
    return places;
  }

  DistributedSampler sampler_;
};

/// State with Python's names; an empty dict for a disabled scaler.
class ScalerEntry : public CheckpointEntry {
 public:
  explicit ScalerEntry(GradScaler& scaler) : scaler_(scaler) {}

  MakeValue collect(const Ranks& /*ranks*/,
                    std::optional<size_t> /*trained*/) const override {
    return [this] {
      auto dict = new_dict().toGenericDict();
      if (const auto state = scaler_.state_dict()) {
        dict.insert("scale", state->scale);
        dict.insert("growth_factor", state->growth_factor);
        dict.insert("backoff_factor", state->backoff_factor);
        dict.insert("growth_interval", state->growth_interval);
        dict.insert("_growth_tracker", state->growth_tracker);
      }
      return dict;
    };
  }
  Apply check(const IValue& saved, RankInfo /*place*/) const override {
    const DictReader dict(saved, "scaler");
    std::optional<GradScalerState> state;
    if (!dict.entries().empty()) {
      state = {dict.number("scale"),
               dict.number("growth_factor"),
               dict.number("backoff_factor"),
               dict.integer("growth_interval"),
               dict.integer("_growth_tracker")};
    }
    scaler_.check_state_dict(state);
    return [this, state] { scaler_.load_state_dict(state); };
  }
  bool loads() const override { return scaler_.is_enabled(); }

 private:
  GradScaler& scaler_;
};

}  // namespace

std::shared_ptr<CheckpointEntry> entry_of(
    std::shared_ptr<torch::nn::Module> module) {
  TORCH_CHECK(module != nullptr, "Expected a module, but got none");
  return std::make_shared<ModuleEntry>(std::move(module));
}

std::shared_ptr<CheckpointEntry> entry_of(Optimizer& optimizer) {
  if (auto* sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer)) {
    return std::make_shared<ShardedOptimizerEntry>(*sharded);
  }
  if (auto* averaging = dynamic_cast<AveragingOptimizer*>(&optimizer)) {
    return std::make_shared<AveragingOptimizerEntry>(optimizer,
                                                     averaging->averager());
  }
  return std::make_shared<OptimizerEntry>(optimizer);
}

std::shared_ptr<CheckpointEntry> entry_of(DistributedSampler sampler) {
  return std::make_shared<SamplerEntry>(std::move(sampler));
}

std::shared_ptr<CheckpointEntry> entry_of(GradScaler& scaler) {
  return std::make_shared<ScalerEntry>(scaler);
}

std::shared_ptr<CheckpointEntry> entry_of(ModelAverager& averager) {
  return std::make_shared<AveragerEntry>(averager);
}

}  // namespace ddp::detail
