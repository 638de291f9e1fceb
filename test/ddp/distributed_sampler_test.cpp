#include "ddp/data/distributed_sampler.h"

#include <algorithm>
#include <random>
#include <sstream>

#include <torch/data.h>
#include <torch/serialize/archive.h>

#include "ddp/data/detail/split_indices.h"
#include "test/support/catch.h"
#include "test/support/state_dict.h"
#include "test/support/warnings.h"

namespace distributed_sampler_test {

using Catch::Contains;
using ddp::DistributedSampler;
using ddp::DistributedSamplerOptions;
using ddp::test::changed;
using ddp::test::entry;
using Indices = std::vector<size_t>;

DistributedSamplerOptions options(int64_t rank, int64_t world) {
  return DistributedSamplerOptions().num_replicas(world).rank(rank);
}

Indices drain(DistributedSampler& sampler, size_t batch_size = 3) {
  Indices all;
  while (auto batch = sampler.next(batch_size)) {
    REQUIRE(batch->size() <= batch_size);
    all.insert(all.end(), batch->begin(), batch->end());
  }
  return all;
}

Indices pass(DistributedSampler& sampler) {
  sampler.reset();
  return drain(sampler);
}

/// The steps of PyTorch's DistributedSampler, with lists.
Indices python_sequential(size_t size, size_t world, size_t rank, bool drop) {
  Indices all(size);
  for (size_t i = 0; i < size; ++i) {
    all[i] = i;
  }
  const size_t total =
      (drop ? size / world : (size + world - 1) / world) * world;
  while (all.size() < total && size > 0) {
    all.push_back(all[all.size() - size]);
  }
  Indices mine;
  for (size_t i = rank; i < total; i += world) {
    mine.push_back(all[i]);
  }
  return mine;
}

/// A dataset: example i is i.
struct Numbers : torch::data::datasets::Dataset<Numbers, int64_t> {
  explicit Numbers(size_t count) : count(count) {}
  int64_t get(size_t index) override { return static_cast<int64_t>(index); }
  torch::optional<size_t> size() const override { return count; }
  size_t count;
};

template <class Loader>
Indices epoch_of(Loader& loader) {
  Indices seen;
  for (auto& batch : loader) {
    seen.insert(seen.end(), batch.begin(), batch.end());
  }
  return seen;
}

TEST_CASE("Without shuffling the split is Python's", "[sampler]") {
  for (const size_t size : {0, 1, 2, 3, 7, 8, 9, 100}) {
    for (const size_t world : {1, 2, 3, 4, 7}) {
      for (const bool drop : {false, true}) {
        for (size_t rank = 0; rank < world; ++rank) {
          CAPTURE(size, world, rank, drop);
          DistributedSampler sampler(
              size,
              options(static_cast<int64_t>(rank), static_cast<int64_t>(world))
                  .shuffle(false)
                  .drop_last(drop));
          const auto expected = python_sequential(size, world, rank, drop);
          CHECK(sampler.size() == expected.size());
          CHECK(pass(sampler) == expected);
        }
      }
    }
  }
}

TEST_CASE("Without padding every index comes exactly once", "[sampler]") {
  const auto shuffle = GENERATE(false, true);
  for (const size_t size : {0, 1, 5, 16, 33}) {
    for (const int64_t world : {1, 2, 4, 7}) {
      CAPTURE(size, world, shuffle);
      Indices all;
      std::vector<size_t> counts;
      for (int64_t rank = 0; rank < world; ++rank) {
        DistributedSampler sampler(
            size, options(rank, world).padding(false).shuffle(shuffle));
        const auto mine = pass(sampler);
        CHECK(mine.size() == sampler.size());
        counts.push_back(mine.size());
        all.insert(all.end(), mine.begin(), mine.end());
      }
      const auto [least, most] =
          std::minmax_element(counts.begin(), counts.end());
      CHECK(*most - *least <= 1);
      std::sort(all.begin(), all.end());
      CHECK(all == python_sequential(size, 1, 0, false));
    }
  }
}

TEST_CASE("The order depends on seed + epoch alone", "[sampler]") {
  DistributedSampler a(50, options(1, 3).seed(7));
  DistributedSampler b(50, options(1, 3).seed(5));
  const auto first = pass(a);
  CHECK(pass(a) == first);
  CHECK(pass(b) != first);
  b.set_epoch(2);
  CHECK(pass(b) == first);
  a.set_epoch(1);
  CHECK(pass(a) != first);
}

TEST_CASE("set_epoch takes effect with the next pass", "[sampler]") {
  DistributedSampler sampler(40, options(0, 2));
  const auto epoch_0 = pass(sampler);
  sampler.reset();
  Indices drawn = sampler.next(5).value();
  sampler.set_epoch(1);
  const auto rest = drain(sampler);
  drawn.insert(drawn.end(), rest.begin(), rest.end());
  CHECK(drawn == epoch_0);
  CHECK(sampler.epoch() == 1);
  CHECK_FALSE(sampler.next(1));
  CHECK(pass(sampler) != epoch_0);
}

TEST_CASE("A loader sees set_epoch of the caller's copy", "[sampler]") {
  const size_t workers = GENERATE(0, 2);
  DistributedSampler sampler(30, options(1, 2));
  DistributedSampler reference(30, options(1, 2));
  auto loader = torch::data::make_data_loader(
      Numbers(30),
      sampler,
      torch::data::DataLoaderOptions().batch_size(4).workers(workers));
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    reference.set_epoch(epoch);
    CHECK(epoch_of(*loader) == pass(reference));
  }
}

TEST_CASE("A reset may bring a new size", "[sampler]") {
  DistributedSampler sampler(10, options(0, 2).shuffle(false));
  sampler.reset(4);
  CHECK(sampler.size() == 2);
  CHECK(drain(sampler) == Indices{0, 2});
}

TEST_CASE("A restored sampler goes on in the middle of the pass", "[sampler]") {
  const auto set_epoch_again = GENERATE(false, true);
  DistributedSampler saved(41, options(2, 4).seed(3));
  saved.set_epoch(5);
  const auto whole = pass(saved);
  saved.reset();
  saved.next(4);
  CHECK(saved.position() == 4);

  std::stringstream file;
  torch::serialize::OutputArchive output;
  saved.save(output);
  output.save_to(file);
  torch::serialize::InputArchive input;
  input.load_from(file);
  DistributedSampler restored(41, options(2, 4).seed(3));
  restored.load(input);

  CHECK(restored.epoch() == 5);
  if (set_epoch_again) {
    restored.set_epoch(5);
  }
  auto loader = torch::data::make_data_loader(Numbers(41), restored, 3);
  CHECK(epoch_of(*loader) == Indices(whole.begin() + 4, whole.end()));
  CHECK(epoch_of(*loader) == whole);
}

TEST_CASE("A restored place belongs to its epoch alone", "[sampler]") {
  DistributedSampler saved(41, options(2, 4));
  saved.reset();
  saved.next(4);
  DistributedSampler restored(41, options(2, 4));
  restored.load_state_dict(saved.state_dict());
  restored.set_epoch(1);
  DistributedSampler reference(41, options(2, 4));
  reference.set_epoch(1);
  CHECK(pass(restored) == pass(reference));
}

TEST_CASE("Between passes a sampler is at the start of the next", "[sampler]") {
  DistributedSampler sampler(9, options(0, 2));
  CHECK(entry(sampler.state_dict(), "position").toInt() == 0);
  pass(sampler);
  CHECK(sampler.position() == 0);
  sampler.set_epoch(1);
  CHECK(entry(sampler.state_dict(), "epoch").toInt() == 1);
  CHECK(entry(sampler.state_dict(), "position").toInt() == 0);

  // All examples are drawn, but the end of the pass is not seen yet: a restored
  // sampler has nothing left of this pass.
  sampler.reset();
  sampler.next(sampler.size());
  DistributedSampler restored(9, options(0, 2));
  restored.load_state_dict(sampler.state_dict());
  CHECK(pass(restored).empty());
  CHECK(pass(restored).size() == 5);
}

struct Part {
  Indices seen;       // by the loop
  c10::IValue state;  // of the sampler, in the loop or after it
  bool has_ended = false;
};

/// Loops over a loader, and leaves the loop in the given batch, counted from 1.
Part part_of_pass(const DistributedSampler& sampler,
                  size_t last,
                  const torch::data::DataLoaderOptions& options) {
  auto loader = torch::data::make_data_loader(Numbers(40), sampler, options);
  Part part;
  for (auto& batch : *loader) {
    part.seen.insert(part.seen.end(), batch.begin(), batch.end());
    if (--last == 0) {
      part.state = sampler.state_dict();
      return part;
    }
  }
  return {part.seen, sampler.state_dict(), true};
}

TEST_CASE("A place counts the batches that the loop has got", "[sampler]") {
  const size_t workers = GENERATE(0, 1, 3);
  const size_t max_jobs = GENERATE(0, 1, 2, 50);
  const bool drops = GENERATE(false, true);
  const size_t first_part = GENERATE(range(1, 9));
  if (workers == 0 && max_jobs > 0) {
    return;  // LibTorch's loader loses these batches
  }
  CAPTURE(workers, max_jobs, drops, first_part);
  auto loader_options =
      torch::data::DataLoaderOptions(3).workers(workers).drop_last(drops);
  if (max_jobs > 0) {
    loader_options.max_jobs() = max_jobs;
  }
  DistributedSampler reference(40, options(1, 2));
  const auto whole = pass(reference);
  REQUIRE(whole.size() == 20);
  const Indices all(whole.begin(), whole.begin() + (drops ? 18 : 20));
  auto part = part_of_pass(
      DistributedSampler(40, options(1, 2)), first_part, loader_options);
  auto seen = part.seen;
  CHECK(seen.size() == std::min(first_part * 3, all.size()));
  for (int parts = 0; parts < 10 && !part.has_ended; ++parts) {
    DistributedSampler restored(40, options(1, 2));
    restored.load_state_dict(part.state);
    part = part_of_pass(restored, 2, loader_options);
    seen.insert(seen.end(), part.seen.begin(), part.seen.end());
  }
  REQUIRE(part.has_ended);
  CHECK(seen == all);
  // The loop has seen the end: the next pass is whole.
  DistributedSampler next(40, options(1, 2));
  next.load_state_dict(part.state);
  CHECK(pass(next) == whole);
}

TEST_CASE("A loader of the program may draw ahead", "[sampler]") {
  DistributedSampler sampler(20, options(0, 2));
  const auto whole = pass(sampler);
  sampler.reset();
  sampler.count_given();
  drain(sampler);
  CHECK(sampler.position() == 0);
  sampler.give(4);
  CHECK(sampler.position() == 4);
  DistributedSampler restored(20, options(0, 2));
  restored.load_state_dict(sampler.state_dict());
  restored.reset();
  CHECK(drain(restored) == Indices(whole.begin() + 4, whole.end()));
  sampler.give(100);  // at most the drawn ones
  CHECK(sampler.position() == 10);
  sampler.give(std::nullopt);
  CHECK(sampler.position() == 0);
  CHECK(pass(sampler) == whole);
}

TEST_CASE("A save in a pass of a loader without order warns", "[sampler]") {
  const bool in_order = GENERATE(true, false);
  const ddp::test::Warnings warnings;
  part_of_pass(
      DistributedSampler(40, options(0, 2)),
      2,
      torch::data::DataLoaderOptions(3).workers(2).enforce_ordering(in_order));
  CHECK(warnings.texts().size() == (in_order ? 0 : 1));
}

TEST_CASE("A place carries over to another number of ranks", "[sampler]") {
  Indices seen;
  c10::IValue state;
  for (int64_t rank = 0; rank < 4; ++rank) {
    DistributedSampler sampler(48, options(rank, 4));
    sampler.reset();
    const auto batch = sampler.next(6).value();
    seen.insert(seen.end(), batch.begin(), batch.end());
    state = sampler.state_dict();
  }
  for (int64_t rank = 0; rank < 3; ++rank) {
    DistributedSampler sampler(48, options(rank, 3));
    sampler.load_state_dict(state);
    const auto rest = pass(sampler);
    seen.insert(seen.end(), rest.begin(), rest.end());
  }
  std::sort(seen.begin(), seen.end());
  CHECK(seen == python_sequential(48, 1, 0, false));
}

TEST_CASE("The places that ranks have done are exact", "[sampler]") {
  using ddp::detail::done_after;
  using ddp::detail::EpochProgress;
  ddp::detail::Split split;
  split.dataset_size = 10;
  split.num_replicas = 3;
  const auto after = [&](const EpochProgress& before, const Indices& counts) {
    const auto done = done_after(split, before, counts);
    return std::pair(done.first, done.ahead);
  };
  CHECK(after({}, {0, 0, 0}) == std::pair(size_t{0}, Indices{}));
  CHECK(after({}, {2, 2, 2}) == std::pair(size_t{6}, Indices{}));
  CHECK(after({}, {3, 1, 2}) == std::pair(size_t{4}, Indices{5, 6}));
  CHECK(after({}, {0, 2, 0}) == std::pair(size_t{0}, Indices{1, 4}));
  // Rank 0 has one more place. Repeats on the other ranks do not count.
  CHECK(after({}, {4, 4, 4}) == std::pair(size_t{10}, Indices{}));
  CHECK(after({}, {3, 4, 3}) == std::pair(size_t{9}, Indices{}));
  // The places 4, 7, 8 and 9 are left.
  const EpochProgress before{4, {5, 6}};
  CHECK(ddp::detail::split_size(split, before) == 2);
  CHECK(after(before, {1, 0, 0}) == std::pair(size_t{7}, Indices{}));
  CHECK(after(before, {0, 1, 1}) == std::pair(size_t{4}, Indices{5, 6, 7, 8}));
  CHECK(after(before, {1, 1, 1}) == std::pair(size_t{9}, Indices{}));
  CHECK(after(before, {2, 2, 2}) == std::pair(size_t{10}, Indices{}));
  CHECK(after({10, {}}, {0, 0, 0}) == std::pair(size_t{10}, Indices{}));
}

TEST_CASE("Each example comes once, however the number of ranks changes",
          "[sampler]") {
  std::mt19937_64 random(7);
  const auto below = [&](size_t end) { return random() % end; };
  for (int schedule = 0; schedule < 300; ++schedule) {
    const size_t size = below(60);
    const bool in_lockstep = schedule % 2 == 0;
    const int tail = schedule % 3;  // 0: pad, 1: drop, 2: uneven
    CAPTURE(schedule, size, in_lockstep, tail);
    c10::IValue state = changed(DistributedSampler(0).state_dict(), "epoch", 3);
    std::vector<size_t> times(size);
    size_t world = 0;
    size_t most = 0;  // largest world so far
    size_t repeats = 0;
    bool is_over = false;
    while (!is_over) {
      world = 1 + below(7);
      most = std::max(most, world);
      const size_t steps = below(size / world + 2);
      std::vector<ddp::SamplerProgress> by_rank;
      for (size_t rank = 0; rank < world; ++rank) {
        DistributedSampler sampler(
            size,
            options(static_cast<int64_t>(rank), static_cast<int64_t>(world))
                .seed(5)
                .drop_last(tail == 1)
                .padding(tail != 2));
        sampler.load_state_dict(state);
        sampler.reset();
        for (size_t left = in_lockstep ? steps : below(steps + 1); left > 0;
             --left) {
          const auto index = sampler.next(1);
          if (!index) {
            break;
          }
          repeats += times[(*index)[0]]++ == 0 ? 0 : 1;
        }
        by_rank.push_back(sampler.progress());
        if (rank + 1 == world) {
          is_over = std::none_of(by_rank.begin(),
                                 by_rank.end(),
                                 [](const auto& each) { return each.in_pass; });
          state = sampler.state_dict(by_rank);
        }
      }
    }
    const auto seen = size - static_cast<size_t>(std::count(
                                 times.begin(), times.end(), size_t{0}));
    // If ranks draw different numbers of examples, padding may repeat one on a
    // rank while another rank has examples left.
    if (in_lockstep || tail != 0) {
      CHECK(repeats <= (tail == 0 ? most - 1 : 0));
    }
    CHECK(size - seen <= (tail == 1 ? world - 1 : 0));
  }
}

TEST_CASE("A place of ranks that have not done equally many is exact",
          "[sampler]") {
  DistributedSampler first(20, options(0, 2).shuffle(false));
  DistributedSampler second(20, options(1, 2).shuffle(false));
  first.reset();
  second.reset();
  first.next(5);   // 0 2 4 6 8
  second.next(2);  // 1 3
  const auto state = first.state_dict({first.progress(), second.progress()});
  CHECK(entry(state, "position").toInt() == 5);
  CHECK(entry(state, "ahead").toIntVector() == std::vector<int64_t>{6, 8});

  std::stringstream file;
  DistributedSampler restored(20, options(0, 1).shuffle(false));
  restored.load_state_dict(state);
  torch::serialize::OutputArchive output;
  restored.save(output);
  output.save_to(file);
  torch::serialize::InputArchive input;
  input.load_from(file);
  DistributedSampler again(20, options(0, 1).shuffle(false));
  again.load(input);
  CHECK(pass(again) ==
        Indices{5, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19});
  CHECK(pass(again).size() == 20);
}

TEST_CASE("A sampler alone has the whole dataset", "[sampler]") {
  DistributedSampler sampler(5, DistributedSamplerOptions().shuffle(false));
  CHECK(pass(sampler) == Indices{0, 1, 2, 3, 4});
}

TEST_CASE("A sampler refuses invalid options", "[sampler]") {
  CHECK_THROWS_WITH(
      DistributedSampler(4, options(2, 2)),
      Contains("Invalid rank 2, rank should be in the interval [0, 1]"));
  CHECK_THROWS_WITH(DistributedSampler(4, options(-1, 2)),
                    Contains("Invalid rank -1"));
  CHECK_THROWS_WITH(DistributedSampler(4, options(0, 0)),
                    Contains("num_replicas of at least 1, but got 0"));
  CHECK_THROWS_WITH(
      DistributedSampler(4, options(0, 2).drop_last(true).padding(false)),
      Contains("drop_last(true) or padding(false), but got both"));

  DistributedSampler sampler(4, options(0, 2).seed(1));
  sampler.reset();
  sampler.next(1);
  const auto state = sampler.state_dict();
  CHECK_THROWS_WITH(DistributedSampler(6, options(0, 2)).load_state_dict(state),
                    Contains("4 examples, but got one of 6"));
  CHECK_THROWS_WITH(DistributedSampler(4, options(0, 2)).load_state_dict(state),
                    Contains("seed 1), but got shuffle 1, seed 0"));
  for (const int64_t position : {-1, 5}) {
    CHECK_THROWS_WITH(
        sampler.load_state_dict(changed(state, "position", position)),
        Contains("a sampler position in [0, 4]"));
  }
  for (const auto& ahead :
       std::vector<std::vector<int64_t>>{{2}, {3, 3}, {4}, {-1}}) {
    CHECK_THROWS_WITH(sampler.load_state_dict(changed(state, "ahead", ahead)),
                      Contains("in ascending order behind"));
  }
}

}  // namespace distributed_sampler_test
