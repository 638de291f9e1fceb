#include "ddp/data/distributed_sampler.h"

#include <algorithm>

#include <torch/serialize/archive.h>

#include "ddp/data/detail/split_indices.h"
#include "ddp/job/process_group.h"

namespace ddp {
namespace {

using detail::EpochProgress;
using detail::Split;

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

}  // namespace

struct DistributedSampler::Shared {
  enum class Phase { fresh, running, ended };

  Split split;
  Phase phase = Phase::fresh;

  // State of the next pass.
  int64_t epoch = 0;
  EpochProgress start;  // not empty only after load_state

  // State of the running pass.
  std::vector<size_t> indices;
  int64_t running_epoch = 0;
  EpochProgress done;  // before the pass began
  size_t drawn = 0;    // number of drawn indices

  void begin() {
    done = fitting(start, split.dataset_size);
    indices = detail::split_indices(split, epoch, done);
    running_epoch = epoch;
    drawn = 0;
    start = {};
    phase = Phase::running;
  }

  SamplerState at(int64_t at_epoch, const EpochProgress& places) const {
    return {at_epoch,
            static_cast<int64_t>(places.first),
            static_cast<int64_t>(split.dataset_size),
            split.seed,
            split.shuffle,
            {places.ahead.begin(), places.ahead.end()}};
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
    shared_->phase = Shared::Phase::ended;
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
                   shared_->drawn
             : 0;
}

SamplerProgress DistributedSampler::progress(
    std::optional<size_t> trained) const {
  const bool in_pass = shared_->phase == Shared::Phase::running ||
                       (trained && shared_->phase == Shared::Phase::ended);
  return {shared_->split.rank,
          std::min(trained.value_or(shared_->drawn), shared_->drawn),
          in_pass};
}

SamplerState DistributedSampler::state() const {
  return state(std::vector{progress()});
}

SamplerState DistributedSampler::state(size_t trained) const {
  return state(std::vector{progress(trained)});
}

SamplerState DistributedSampler::state(
    const std::vector<SamplerProgress>& by_rank) const {
  const bool in_pass =
      std::any_of(by_rank.begin(), by_rank.end(), [](const auto& each) {
        return each.in_pass;
      });
  if (!in_pass) {
    return shared_->at(shared_->epoch, shared_->start);
  }
  std::vector<size_t> counts(shared_->split.num_replicas, by_rank[0].done);
  for (const auto& each : by_rank) {
    counts.at(each.rank) = each.done;
  }
  return shared_->at(shared_->running_epoch,
                     detail::done_after(shared_->split, shared_->done, counts));
}

void DistributedSampler::check_state(const SamplerState& state) const {
  const Split& split = shared_->split;
  TORCH_CHECK_VALUE(state.position >= 0 && state.position <= state.dataset_size,
                    "Expected a sampler position in [0, ",
                    state.dataset_size,
                    "], but got ",
                    state.position);
  int64_t place = state.position;
  for (const auto next : state.ahead) {
    TORCH_CHECK_VALUE(next > place && next < state.dataset_size,
                      "Expected places of ",
                      state.dataset_size,
                      " examples in ascending order behind the sampler's "
                      "position ",
                      state.position,
                      ", but got ",
                      next);
    place = next;
  }
  if (state.position > 0 || !state.ahead.empty()) {
    const auto size = static_cast<int64_t>(split.dataset_size);
    TORCH_CHECK_VALUE(state.dataset_size == size,
                      "Expected the dataset that the saved pass ran over, of ",
                      state.dataset_size,
                      " examples, but got one of ",
                      size);
    TORCH_CHECK_VALUE(state.shuffle == split.shuffle &&
                          (!split.shuffle || state.seed == split.seed),
                      "Expected the order of the saved pass (shuffle ",
                      state.shuffle,
                      ", seed ",
                      state.seed,
                      "), but got shuffle ",
                      split.shuffle,
                      ", seed ",
                      split.seed);
  }
}

void DistributedSampler::load_state(const SamplerState& state) {
  check_state(state);
  shared_->phase = Shared::Phase::fresh;
  shared_->epoch = state.epoch;
  shared_->start = {static_cast<size_t>(state.position),
                    {state.ahead.begin(), state.ahead.end()}};
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const auto now = state();
  archive.write("epoch", c10::IValue(now.epoch));
  archive.write("position", c10::IValue(now.position));
  archive.write("dataset_size", c10::IValue(now.dataset_size));
  archive.write("seed", c10::IValue(static_cast<int64_t>(now.seed)));
  archive.write("shuffle", c10::IValue(now.shuffle));
  archive.write("ahead", c10::IValue(now.ahead));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  const auto read = [&archive](const char* key) {
    c10::IValue value;
    archive.read(key, value);
    return value;
  };
  load_state({read("epoch").toInt(),
              read("position").toInt(),
              read("dataset_size").toInt(),
              static_cast<uint64_t>(read("seed").toInt()),
              read("shuffle").toBool(),
              read("ahead").toIntVector()});
}

}  // namespace ddp
