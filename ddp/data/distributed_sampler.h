#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/arg.h>
#include <torch/data/dataloader/stateless.h>
#include <torch/data/samplers/base.h>

#include "ddp/checkpoint/state/stateful.h"

namespace ddp {

/// Options of `DistributedSampler`; the defaults are PyTorch's.
///
/// Example:
/// @code
///   ddp::DistributedSampler sampler(
///       dataset.size().value(),
///       ddp::DistributedSamplerOptions().seed(42).drop_last(true));
/// @endcode
struct DistributedSamplerOptions {
  /// Number of ranks that share the dataset. Unset: `ddp::world_size()` when
  /// the sampler is constructed, which is 1 before `init_process_group`.
  TORCH_ARG(std::optional<int64_t>, num_replicas) = std::nullopt;
  /// The rank of this sampler. Unset: `ddp::rank()` at that time.
  TORCH_ARG(std::optional<int64_t>, rank) = std::nullopt;
  /// Draw a new order every epoch, from `seed + epoch`. False: 0, 1, 2, ...
  TORCH_ARG(bool, shuffle) = true;
  /// Must be equal on all ranks, which is not checked.
  TORCH_ARG(uint64_t, seed) = 0;
  /// Leave out the tail that does not divide evenly, instead of padding.
  TORCH_ARG(bool, drop_last) = false;
  /// Repeat indices from the start until every rank has the same number. False:
  /// use every index exactly once over all ranks, for exact evaluation; the
  /// ranks' sizes then differ by at most one. Training needs equal sizes,
  /// because every rank must make the same number of steps.
  TORCH_ARG(bool, padding) = true;
};

/// Progress of one rank in its pass.
struct SamplerProgress {
  size_t rank = 0;  ///< rank of this progress
  /// Indices that this rank has done since this process began the pass; indices
  /// before a restore do not count.
  size_t done = 0;
  /// False before the first pass and after the end of a pass.
  bool in_pass = false;
};

/// Splits a dataset over the ranks for `torch::data` loaders. Gives the same
/// indices as Python's torch.utils.data.DistributedSampler: a permutation drawn
/// from `seed + epoch`, padded or cut to a multiple of the ranks; rank r gets
/// every `num_replicas`-th index, starting with the r-th.
///
/// The sampler is a handle: copies share one state. A `set_epoch` on the
/// caller's copy also affects the loader's copy.
///
/// Not thread-safe. A data loader uses the sampler only from the thread that
/// iterates over the loader, even if the loader has worker threads.
///
/// The state counts the batches that the loop over LibTorch's data loader has
/// got. Batches that worker threads have read ahead do not count: a resumed
/// training gets them.
///
/// Example:
/// @code
///   ddp::DistributedSampler sampler(dataset.size().value());
///   auto loader = torch::data::make_data_loader(dataset, sampler, 64);
///   for (int64_t epoch = 0; epoch < epochs; ++epoch) {
///     sampler.set_epoch(epoch);
///     for (auto& batch : *loader) train(batch);
///   }
/// @endcode
///
/// Source: torch/utils/data/distributed.py of PyTorch 2.11.
class DistributedSampler : public torch::data::samplers::Sampler<>,
                           public Stateful {
 public:
  /// @param dataset_size  number of examples; 0 is allowed.
  /// @throws c10::ValueError if the rank is not in [0, num_replicas),
  ///   num_replicas is below 1, or drop_last is combined with padding(false).
  explicit DistributedSampler(size_t dataset_size,
                              const DistributedSamplerOptions& options = {});

  /// Starts a pass over this rank's indices, like Python's `iter(sampler)`. A
  /// data loader calls it at the start of every loop.
  ///
  /// After `load_state_dict`, the first pass continues at the restored
  /// position, unless `set_epoch` has selected another epoch.
  ///
  /// @param new_size  optional new size of the dataset. A restored position
  ///   still applies.
  void reset(std::optional<size_t> new_size = std::nullopt) override;

  /// Returns up to `batch_size` further indices, or std::nullopt from the end
  /// of the pass until `reset`. Starts a pass if none was started.
  /// @param batch_size  positive; 0 returns an empty list and does not advance.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  /// Sets the epoch of the next pass. Takes effect when the next pass starts,
  /// as in Python. The epoch does not advance by itself: without this call the
  /// next pass has the same order.
  void set_epoch(int64_t epoch);
  /// Returns the epoch of the next pass.
  int64_t epoch() const;

  /// Returns the number of indices in a full pass of this rank
  /// (`len(sampler)`).
  size_t size() const;
  /// Returns the number of indices that this rank has done in the running pass;
  /// 0 between passes. After a restore it counts on from the state's "position"
  /// divided by the number of ranks.
  size_t position() const;

  /// From now on in this pass, indices count as done when they are given, and
  /// not when they are drawn. LibTorch's data loaders make this call after
  /// `reset`, and so does a loader of the program that draws ahead.
  /// @param in_order  false: the batches come in another order than the drawn
  ///   indices. `progress` then warns, because a number does not tell which
  ///   indices are done.
  void count_given(bool in_order = true);
  /// Counts further indices, at most the drawn ones, as given to the training.
  /// @param indices  std::nullopt: none are left, the pass ends.
  void give(std::optional<size_t> indices);

  /// Returns the progress of this rank, for `state_dict`.
  SamplerProgress progress() const;

  /// Returns the position in the dataset as a dict, assuming that all ranks
  /// have done as many indices as this one:
  /// - "epoch": of the running pass; between passes, of the next one.
  /// - "position": number of leading places in the epoch's order that the ranks
  ///   together have done. 0 between passes, unless a restored pass has not
  ///   been continued yet.
  /// - "ahead": list of the places above "position" that are done as well,
  ///   ascending. Not empty only if some ranks have done more than others.
  /// - "dataset_size", "seed", "shuffle": the order depends on them.
  c10::IValue state_dict() const override;
  /// As above, from the progress of each rank; `Checkpoint` gathers it. A rank
  /// without an entry counts like the first entry.
  /// @param by_rank  not empty, with ranks in [0, num_replicas).
  c10::IValue state_dict(const std::vector<SamplerProgress>& by_rank) const;

  /// Continues at a saved position. The number of ranks may have changed: the
  /// rest of the epoch is split over the current ranks. Each example is used
  /// once per epoch, except for indices that `padding` repeats or `drop_last`
  /// leaves out at its end.
  ///
  /// @throws c10::Error, without a change, if an entry is missing or of another
  ///   type; c10::ValueError, without a change, if "position" is negative or
  ///   above "dataset_size", if "ahead" is not ascending between the two, or if
  ///   the position lies within a pass over a dataset of another size or in
  ///   another order ("shuffle", and with it "seed").
  void load_state_dict(const c10::IValue& state) override;
  /// Throws as `load_state_dict` would, without a change.
  void check_state_dict(const c10::IValue& state) const override;

  /// Save and load the state in LibTorch's archives. `load` throws as
  /// `load_state_dict`, and LibTorch's std::exception if there is no state.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Loads the state, as above.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

/// @cond
namespace detail {
/// The sampler inside of the data loader of a `DistributedSampler`.
struct LoaderSampler : DistributedSampler {
  explicit LoaderSampler(DistributedSampler sampler)
      : DistributedSampler(std::move(sampler)) {}
};
}  // namespace detail
/// @endcond

}  // namespace ddp

/// @cond
namespace torch::data {

/// LibTorch's data loader for a `ddp::DistributedSampler`, returned by
/// `make_data_loader`. It reports the batches that the loop gets to the
/// sampler.
template <typename Dataset>
class StatelessDataLoader<Dataset, ddp::DistributedSampler>
    : public StatelessDataLoader<Dataset, ddp::detail::LoaderSampler> {
  using Base = StatelessDataLoader<Dataset, ddp::detail::LoaderSampler>;
  using Batch = typename Base::BatchType;

 public:
  StatelessDataLoader(Dataset dataset,
                      ddp::DistributedSampler sampler,
                      DataLoaderOptions options)
      : Base(std::move(dataset), ddp::detail::LoaderSampler(sampler), options),
        sampler_(std::move(sampler)) {}

  /// Starts a pass, as LibTorch's.
  Iterator<Batch> begin() {
    Base::begin();
    sampler_.count_given(this->options_.enforce_ordering);
    return Iterator<Batch>(
        std::make_unique<detail::ValidIterator<Batch>>([this] {
          auto batch = this->next();
          sampler_.give(batch ? std::optional(this->options_.batch_size)
                              : std::nullopt);
          return batch;
        }));
  }

 private:
  ddp::DistributedSampler sampler_;  // shares its state with the base's
};

}  // namespace torch::data
/// @endcond
