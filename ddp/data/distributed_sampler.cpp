#include "ddp/data/distributed_sampler.h"

#include <algorithm>

#include <torch/serialize/archive.h>

#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/data/detail/split_indices.h"
#include "ddp/job/process_group.h"

namespace ddp {
namespace {

using detail::EpochProgress;
using detail::Split;

// Entries of the state.
constexpr const char* kEpochEntry = "epoch";
constexpr const char* kPositionEntry = "position";
constexpr const char* kDatasetSizeEntry = "dataset_size";
constexpr const char* kSeedEntry = "seed";
constexpr const char* kShuffleEntry = "shuffle";
constexpr const char* kAheadEntry = "ahead";

// Entry of LibTorch's archives.
constexpr const char* kState = "state";

/// Drops places beyond the end of the dataset.
EpochProgress fitting(const EpochProgress& done, size_t dataset_size) {
  EpochProgress result{std::min(done.first, dataset_size), {}};
  for (const size_t place : done.ahead) {
    if (place < dataset_size) {
      result.ahead.push_back(place);
    }
  }
  return result;
}

Split resolve(size_t dataset_size, const DistributedSamplerOptions& options) {
  const int64_t replicas = options.num_replicas().value_or(world_size());
  const int64_t rank = options.rank().value_or(ddp::rank());
  TORCH_CHECK_VALUE(
      replicas >= 1, "Expected num_replicas of at least 1, but got ", replicas);
  TORCH_CHECK_VALUE(rank >= 0 && rank < replicas,
                    "Invalid rank ",
                    rank,
                    ", rank should be in the interval [0, ",
                    replicas - 1,
                    "]");
  TORCH_CHECK_VALUE(!options.drop_last() || options.padding(),
                    "Expected drop_last(true) or padding(false), but got both: "
                    "one leaves the tail out, the other keeps it");
  const auto tail = options.drop_last() ? Split::Tail::drop
                    : options.padding() ? Split::Tail::pad
                                        : Split::Tail::uneven;
  return {dataset_size,
          static_cast<size_t>(replicas),
          static_cast<size_t>(rank),
          options.seed(),
          options.shuffle(),
          tail};
}

/// Returns the saved part of an epoch.
/// @throws c10::Error if it does not fit the split.
EpochProgress read_progress(const detail::DictReader& saved,
                            const Split& split) {
  const auto position = saved.integer(kPositionEntry);
  const auto dataset_size = saved.integer(kDatasetSizeEntry);
  TORCH_CHECK_VALUE(position >= 0 && position <= dataset_size,
                    "Expected a sampler position in [0, ",
                    dataset_size,
                    "], but got ",
                    position);
  EpochProgress done{static_cast<size_t>(position), {}};
  int64_t place = position;
  for (const auto& next : saved.list(kAheadEntry)) {
    TORCH_CHECK(next.isInt(),
                "expected ints as its sampler[\"ahead\"], but got ",
                detail::describe(next));
    TORCH_CHECK_VALUE(next.toInt() > place && next.toInt() < dataset_size,
                      "Expected places of ",
                      dataset_size,
                      " examples in ascending order behind the sampler's "
                      "position ",
                      position,
                      ", but got ",
                      next.toInt());
    place = next.toInt();
    done.ahead.push_back(static_cast<size_t>(place));
  }
  const auto shuffle = saved.boolean(kShuffleEntry);
  const auto seed = static_cast<uint64_t>(saved.integer(kSeedEntry));
  if (position == 0 && done.ahead.empty()) {
    return done;
  }
  TORCH_CHECK_VALUE(dataset_size == static_cast<int64_t>(split.dataset_size),
                    "Expected the dataset that the saved pass ran over, of ",
                    dataset_size,
                    " examples, but got one of ",
                    split.dataset_size);
  TORCH_CHECK_VALUE(
      shuffle == split.shuffle && (!split.shuffle || seed == split.seed),
      "Expected the order of the saved pass (shuffle ",
      shuffle,
      ", seed ",
      seed,
      "), but got shuffle ",
      split.shuffle,
      ", seed ",
      split.seed);
  return done;
}

}  // namespace

struct DistributedSampler::Shared {
  enum class Phase { fresh, running, ended };

  Split split;
  Phase phase = Phase::fresh;

  // State of the next pass.
  int64_t epoch = 0;
  EpochProgress start;  // not empty only after load_state_dict

  // State of the running pass.
  std::vector<size_t> indices;
  int64_t running_epoch = 0;
  EpochProgress done;           // before the pass began
  size_t drawn = 0;             // number of drawn indices
  std::optional<size_t> given;  // of these; unset: all
  bool in_order = true;

  size_t done_now() const { return given.value_or(drawn); }

  void begin() {
    done = fitting(start, split.dataset_size);
    indices = detail::split_indices(split, epoch, done);
    running_epoch = epoch;
    drawn = 0;
    given.reset();
    start = {};
    phase = Phase::running;
  }

  c10::IValue state_at(int64_t at_epoch, const EpochProgress& places) const {
    auto state = detail::new_dict().toGenericDict();
    state.insert(kEpochEntry, at_epoch);
    state.insert(kPositionEntry, static_cast<int64_t>(places.first));
    state.insert(kDatasetSizeEntry, static_cast<int64_t>(split.dataset_size));
    state.insert(kSeedEntry, static_cast<int64_t>(split.seed));
    state.insert(kShuffleEntry, split.shuffle);
    state.insert(
        kAheadEntry,
        std::vector<int64_t>(places.ahead.begin(), places.ahead.end()));
    return state;
  }
};

DistributedSampler::DistributedSampler(size_t dataset_size,
                                       const DistributedSamplerOptions& options)
    : shared_(std::make_shared<Shared>()) {
  shared_->split = resolve(dataset_size, options);
}

void DistributedSampler::reset(std::optional<size_t> new_size) {
  shared_->split.dataset_size = new_size.value_or(shared_->split.dataset_size);
  shared_->begin();
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  if (shared_->phase == Shared::Phase::fresh) {
    shared_->begin();
  }
  const size_t left = shared_->indices.size() - shared_->drawn;
  if (left == 0 || shared_->phase == Shared::Phase::ended) {
    if (!shared_->given) {
      shared_->phase = Shared::Phase::ended;
    }
    return std::nullopt;
  }
  const auto from =
      shared_->indices.begin() + static_cast<std::ptrdiff_t>(shared_->drawn);
  const size_t count = std::min(left, batch_size);
  shared_->drawn += count;
  return std::vector<size_t>(from, from + static_cast<std::ptrdiff_t>(count));
}

void DistributedSampler::set_epoch(int64_t epoch) {
  if (epoch != shared_->epoch) {
    shared_->start = {};
  }
  shared_->epoch = epoch;
}

int64_t DistributedSampler::epoch() const {
  return shared_->epoch;
}

size_t DistributedSampler::size() const {
  return detail::split_size(shared_->split);
}

size_t DistributedSampler::position() const {
  return shared_->phase == Shared::Phase::running
             ? shared_->done.first / shared_->split.num_replicas +
                   shared_->done_now()
             : 0;
}

void DistributedSampler::count_given(bool in_order) {
  shared_->phase = Shared::Phase::running;  // a small dataset is drawn already
  shared_->given = 0;
  shared_->in_order = in_order;
}

void DistributedSampler::give(std::optional<size_t> indices) {
  if (!indices) {
    shared_->phase = Shared::Phase::ended;
    return;
  }
  shared_->given = std::min(shared_->done_now() + *indices, shared_->drawn);
}

SamplerProgress DistributedSampler::progress() const {
  const bool in_pass = shared_->phase == Shared::Phase::running;
  if (in_pass && shared_->given && !shared_->in_order) {
    TORCH_WARN_ONCE(
        "Expected a data loader with enforce_ordering(true) for a sampler that "
        "is saved within a pass, but got false: after a resume some examples "
        "come twice and others are left out");
  }
  return {shared_->split.rank, shared_->done_now(), in_pass};
}

c10::IValue DistributedSampler::state_dict() const {
  return state_dict(std::vector{progress()});
}

c10::IValue DistributedSampler::state_dict(
    const std::vector<SamplerProgress>& by_rank) const {
  const bool in_pass =
      std::any_of(by_rank.begin(), by_rank.end(), [](const auto& each) {
        return each.in_pass;
      });
  if (!in_pass) {
    return shared_->state_at(shared_->epoch, shared_->start);
  }
  std::vector<size_t> counts(shared_->split.num_replicas, by_rank[0].done);
  for (const auto& each : by_rank) {
    counts.at(each.rank) = each.done;
  }
  return shared_->state_at(
      shared_->running_epoch,
      detail::done_after(shared_->split, shared_->done, counts));
}

void DistributedSampler::check_state_dict(const c10::IValue& state) const {
  const detail::DictReader saved(state, "sampler");
  saved.integer(kEpochEntry);
  read_progress(saved, shared_->split);
}

void DistributedSampler::load_state_dict(const c10::IValue& state) {
  const detail::DictReader saved(state, "sampler");
  const auto epoch = saved.integer(kEpochEntry);
  shared_->start = read_progress(saved, shared_->split);
  shared_->epoch = epoch;
  shared_->phase = Shared::Phase::fresh;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write(kState, state_dict());
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  c10::IValue state;
  archive.read(kState, state);
  load_state_dict(state);
}

}  // namespace ddp
