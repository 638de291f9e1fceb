#include "ddp/checkpoint.h"

#include <exception>
#include <utility>
#include <vector>

#include "ddp/detail/checkpoint/checkpoint_file.h"
#include "ddp/detail/checkpoint/pickle/torch_file.h"
#include "ddp/detail/checkpoint/rng_state.h"
#include "ddp/detail/text_collectives.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "ddp/process_group.h"

namespace ddp {
namespace {

/// The ranks that act together; one alone without a process group.
class Ranks {
 public:
  explicit Ranks(const c10::intrusive_ptr<c10d::Backend>& group)
      : group_(group || !is_initialized() ? group : ddp::process_group()) {}

  size_t rank() const {
    return group_ ? static_cast<size_t>(group_->getRank()) : 0;
  }
  size_t size() const {
    return group_ ? static_cast<size_t>(group_->getSize()) : 1;
  }

  std::vector<std::string> gather(const std::string& mine) const {
    if (size() == 1) {
      return {mine};
    }
    const auto device = group_->getBackendName() == "nccl"
                            ? local_device()
                            : c10::Device(c10::kCPU);
    return detail::all_gather_text(*group_, device, mine);
  }

  /// Runs `work` here. When it throws on any rank, throws on all of them.
  template <class Work>
  void together(const Work& work) const {
    std::string mine;
    try {
      work();
    } catch (const c10::Error& error) {
      mine = error.what_without_backtrace();
    } catch (const std::exception& error) {
      mine = error.what();
    }
    const auto errors = gather(mine);
    for (size_t rank = 0; rank < errors.size(); ++rank) {
      if (!errors[rank].empty()) {
        fail(size() > 1 ? "rank " + std::to_string(rank) + ": " + errors[rank]
                        : errors[rank]);
      }
    }
  }

  /// Throws on all ranks. A rank that throws may end its process at once, and
  /// would break the last exchange of a slower one: so all finish it first.
  [[noreturn]] void fail(const std::string& error) const {
    try {
      gather("");
    } catch (const std::exception&) {
      // The slower rank is gone itself; the error to report is ours.
    }
    TORCH_CHECK(false, error);
  }

 private:
  c10::intrusive_ptr<c10d::Backend> group_;
};

}  // namespace

Checkpoint::Checkpoint(std::shared_ptr<torch::nn::Module> model)
    : model_(std::move(model)) {
  TORCH_CHECK(model_ != nullptr, "Expected a module, but got none");
}

Checkpoint& Checkpoint::optimizer(torch::optim::Optimizer& optimizer) {
  optimizer_ = &optimizer;
  return *this;
}

Checkpoint& Checkpoint::sampler(DistributedSampler sampler) {
  sampler_ = std::move(sampler);
  return *this;
}

Checkpoint& Checkpoint::scaler(GradScaler& scaler) {
  scaler_ = &scaler;
  return *this;
}

Checkpoint& Checkpoint::process_group(c10::intrusive_ptr<c10d::Backend> group) {
  group_ = std::move(group);
  return *this;
}

Checkpoint& Checkpoint::epoch(int64_t epoch) {
  epoch_ = epoch;
  return *this;
}

Checkpoint& Checkpoint::step(int64_t step) {
  step_ = step;
  return *this;
}

Checkpoint& Checkpoint::trained(std::optional<size_t> examples) {
  trained_ = examples;
  return *this;
}

void Checkpoint::save(const std::string& path) const {
  const Ranks ranks(group_);
  const auto* sharded = dynamic_cast<ZeroRedundancyOptimizer*>(optimizer_);
  const auto whole = sharded ? sharded->consolidate() : nullptr;
  const detail::CheckpointParts parts{
      model_.get(), sharded ? whole.get() : optimizer_, sampler_, scaler_};
  const auto rng = ranks.gather(detail::rng_bytes(detail::gpu_of(*model_)));
  ranks.together([&] {
    if (ranks.rank() != 0) {
      return;
    }
    std::optional<SamplerState> position;
    if (sampler_) {
      position = trained_ ? sampler_->state(*trained_) : sampler_->state();
    }
    std::vector<c10::IValue> rng_values;
    for (const auto& bytes : rng) {
      rng_values.push_back(detail::rng_value(bytes));
    }
    detail::write_torch_file(path,
                             detail::checkpoint_to_value(
                                 parts, position, epoch_, step_, rng_values));
  });
}

void Checkpoint::load(const std::string& path) {
  const Ranks ranks(group_);
  auto* sharded = dynamic_cast<ZeroRedundancyOptimizer*>(optimizer_);
  const auto whole = sharded ? sharded->make_whole() : nullptr;
  const detail::CheckpointParts parts{
      model_.get(), sharded ? whole.get() : optimizer_, sampler_, scaler_};
  detail::CheckpointContent content;
  ranks.together([&] {
    content = detail::read_checkpoint(path, parts, ranks.rank(), ranks.size());
  });
  const auto ids = ranks.gather(content.content_id);
  for (size_t rank = 1; rank < ids.size(); ++rank) {
    if (ids[rank] != ids[0]) {
      ranks.fail("Cannot load " + path + ": rank 0 and rank " +
                 std::to_string(rank) +
                 " see different files there; put it on a file system that all "
                 "ranks share, or copy rank 0's file to every host");
    }
  }
  epoch_ = content.epoch.value_or(epoch_);
  step_ = content.step.value_or(step_);
  detail::apply(std::move(content), parts);
  if (sharded) {
    sharded->take(*whole);
  }
}

}  // namespace ddp
