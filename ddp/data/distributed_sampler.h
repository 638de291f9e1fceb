#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/arg.h>
#include <torch/data/samplers/base.h>

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
  /// Number of ranks that share the dataset. Unset: `ddp::world_size()`.
  TORCH_ARG(std::optional<int64_t>, num_replicas) = std::nullopt;
  /// Rank whose indices are drawn. Unset: `ddp::rank()`.
  TORCH_ARG(std::optional<int64_t>, rank) = std::nullopt;
  /// Draw a new order every epoch, from `seed + epoch`. False: 0, 1, 2, ...
  TORCH_ARG(bool, shuffle) = true;
  /// Must be the same on all ranks.
  TORCH_ARG(uint64_t, seed) = 0;
  /// Leave out the tail that does not divide evenly, instead of padding.
  TORCH_ARG(bool, drop_last) = false;
  /// Repeat indices from the start until every rank has equally many. False,
  /// for exact evaluation: every index exactly once over all ranks, so that
  /// ranks differ in size by at most one. Training needs equal sizes, since
  /// every rank must take the same number of steps.
  TORCH_ARG(bool, padding) = true;
};

/// Where a sampler is in its dataset: what a checkpoint keeps.
struct SamplerState {
  /// Epoch of the running pass; between passes, of the next one.
  int64_t epoch = 0;
  /// Places of the epoch's order that are done, without a gap; 0 between
  /// passes.
  int64_t position = 0;
  int64_t dataset_size = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  /// Places behind `position` that are done too, ascending: where ranks have
  /// not done equally many.
  std::vector<int64_t> ahead;
};

/// How far one rank is in its pass.
struct SamplerProgress {
  size_t rank = 0;
  /// Indices done since the pass began in this program.
  size_t done = 0;
  /// False before the first pass, and after the end of one.
  bool in_pass = false;
};

/// Splits a dataset over the ranks for `torch::data` loaders, index for index
/// as Python's torch.utils.data.DistributedSampler: a permutation drawn from
/// `seed + epoch`, padded or cut to a multiple of the ranks, of which rank r
/// takes every `num_replicas`-th index from r on.
///
/// A handle: copies share one state, so `set_epoch` on the caller's copy is
/// seen by the loader that took another copy by value.
///
/// Not thread-safe. A data loader touches it only from the thread that iterates
/// the loader, also when it has worker threads.
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
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// @param dataset_size  number of examples; 0 is allowed.
  /// @throws c10::ValueError when the rank does not lie in [0, num_replicas),
  ///   num_replicas is below 1, or drop_last meets padding(false).
  explicit DistributedSampler(size_t dataset_size,
                              const DistributedSamplerOptions& options = {});

  /// Starts a pass over this rank's indices, as Python's `iter(sampler)`. A
  /// data loader calls it at the start of every loop.
  ///
  /// After `load_state` (and no `set_epoch` to another epoch) the first pass
  /// begins where the restored one stood.
  ///
  /// @param new_size  a new size of the dataset.
  void reset(std::optional<size_t> new_size = std::nullopt) override;

  /// Up to `batch_size` further indices, or nothing at the end of the pass.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  /// Sets the epoch that the order is drawn from; takes effect when the next
  /// pass starts, as in Python.
  void set_epoch(int64_t epoch);
  /// The epoch that the next pass is drawn from.
  int64_t epoch() const;

  /// Number of indices in one pass of this rank (Python's `len(sampler)`).
  size_t size() const;
  /// Indices this rank has drawn in the running pass, also before it was
  /// restored, if the number of ranks was the same; 0 between passes.
  size_t position() const;

  /// Where the sampler is, if all ranks have done as many as this one. A loader
  /// with worker threads draws ahead of the training: give the number of
  /// examples this rank has really trained on.
  SamplerState state() const;
  SamplerState state(size_t trained) const;

  /// The same from what each rank has done, whatever that is; `Checkpoint`
  /// gathers it. A rank that is not given counts as this one.
  SamplerProgress progress(std::optional<size_t> trained = std::nullopt) const;
  SamplerState state(const std::vector<SamplerProgress>& by_rank) const;

  /// Goes to a saved place, also when the number of ranks has changed since:
  /// what is left of the epoch is then split over those that are there. So in
  /// one epoch each example comes once, but for those that `padding` repeats or
  /// `drop_last` leaves out at its end.
  ///
  /// @throws c10::ValueError, and changes nothing, when the place lies in the
  ///   middle of a pass over another dataset or another order, or is none.
  void load_state(const SamplerState& state);
  /// Throws as `load_state` would, and changes nothing.
  void check_state(const SamplerState& state) const;

  /// `state()` and `load_state()` in LibTorch's own archives.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace ddp
