// The protocol of sums in shared memory, alone: every order in which ranks can
// do its steps, and the bits of its sums.
#include "ddp/shared_memory/sum_protocol.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <unordered_set>

#include <torch/types.h>

#include "test/support/catch.h"

namespace ddp::detail {
namespace sum_protocol_test {

using Catch::Contains;

constexpr int64_t kArenaBytes = 4096;

/// A board and arenas in plain memory, and the protocols of all ranks over
/// them.
class Ranks {
 public:
  explicit Ranks(int size) {
    const auto board_bytes = static_cast<int64_t>(SumBoard::bytes(size));
    memory_ = torch::zeros({board_bytes + size * kArenaBytes}, torch::kByte);
    auto* board = static_cast<std::byte*>(memory_.data_ptr());
    for (int rank = 0; rank < size; ++rank) {
      arenas_.push_back(board + board_bytes + rank * kArenaBytes);
    }
    for (int rank = 0; rank < size; ++rank) {
      protocols_.emplace_back(SumBoard(board), arenas_, rank);
    }
  }

  int size() const { return static_cast<int>(protocols_.size()); }
  SumProtocol& operator[](int rank) {
    return protocols_[static_cast<size_t>(rank)];
  }

  /// A tensor of the rank at an offset of its arena.
  torch::Tensor tensor(int rank,
                       uint64_t offset,
                       int64_t numel,
                       torch::Dtype dtype = torch::kFloat) {
    return torch::from_blob(
        arenas_[static_cast<size_t>(rank)] + offset, {numel}, dtype);
  }

  /// All memory.
  std::string state() const {
    return {static_cast<const char*>(memory_.const_data_ptr()),
            static_cast<size_t>(memory_.numel())};
  }
  std::vector<SumProtocol> protocols() const { return protocols_; }
  void restore(const std::string& state,
               const std::vector<SumProtocol>& protocols) {
    std::memcpy(memory_.data_ptr(), state.data(), state.size());
    protocols_.clear();
    for (const auto& protocol : protocols) {
      protocols_.push_back(protocol);
    }
  }

  /// Lets the ranks do all steps that are possible, in turns.
  void advance_all() {
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (auto& protocol : protocols_) {
        goes_on = protocol.advance() || goes_on;
      }
    }
  }

 private:
  torch::Tensor memory_;
  std::vector<std::byte*> arenas_;  // by rank
  std::vector<SumProtocol> protocols_;
};

SumPlace place_of(uint64_t offset,
                  int64_t numel,
                  torch::Dtype dtype = torch::kFloat) {
  return {offset, numel, static_cast<int32_t>(dtype)};
}

// --- every order of steps ---

constexpr int64_t kNumel = 40;  // three lines of memory

float value_of(int rank, int sum) {
  return static_cast<float>((rank + 1) * (sum + 10));
}

/// A training: a rank writes, starts a sum, and at the end checks the result
/// and overwrites the memory at once, as a program does with its gradients.
struct Training {
  enum class What { start, finish };
  struct Step {
    What what;
    int sum;
  };
  std::vector<Step> steps;
  int memories = 1;  // sums take them in turns
};

class Explorer {
  struct Saved {
    std::string memory;
    std::vector<SumProtocol> protocols;
    std::vector<size_t> at;
  };

 public:
  Explorer(int size, Training training)
      : ranks_(size),
        training_(std::move(training)),
        at_(static_cast<size_t>(ranks_.size()), 0) {}

  /// Tries all orders. Returns the number of states.
  size_t run() {
    explore();
    return seen_.size();
  }

 private:
  enum class Kind { program, sum, take };
  struct Move {
    int rank;
    Kind kind;
  };

  void explore() {
    if (!seen_.insert(key()).second) {
      return;
    }
    const auto here = save();
    std::vector<Move> moves;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      for (const auto kind : {Kind::program, Kind::sum, Kind::take}) {
        if (make({rank, kind})) {
          moves.push_back({rank, kind});
          explore();
          restore(here);
        }
      }
    }
    check_independence(here, moves);
    const bool has_ended =
        std::all_of(at_.begin(), at_.end(), [this](size_t place) {
          return place == training_.steps.size();
        });
    TORCH_CHECK(!moves.empty() || has_ended, "the ranks wait for each other");
  }

  bool make(const Move& move) {
    auto& protocol = ranks_[move.rank];
    return move.kind == Kind::program ? step(move.rank)
           : move.kind == Kind::sum   ? protocol.sum()
                                      : protocol.take();
  }

  /// Moves of two ranks may overlap in time if both moves are possible now.
  /// They must touch different memory: both orders end in the same state.
  void check_independence(const Saved& here, const std::vector<Move>& moves) {
    const auto after = [&](const Move& first, const Move& second) {
      TORCH_CHECK(make(first) && make(second));
      auto key = this->key();
      restore(here);
      return key;
    };
    for (const auto& one : moves) {
      for (const auto& other : moves) {
        TORCH_CHECK(
            one.rank >= other.rank || after(one, other) == after(other, one),
            "the order of moves of ranks ",
            one.rank,
            " and ",
            other.rank,
            " matters");
      }
    }
  }

  Saved save() const { return {ranks_.state(), ranks_.protocols(), at_}; }
  void restore(const Saved& saved) {
    ranks_.restore(saved.memory, saved.protocols);
    at_ = saved.at;
  }

  std::string key() const {
    std::string key = ranks_.state();
    key.append(at_.begin(), at_.end());
    return std::to_string(std::hash<std::string>()(key)) + "/" +
           std::to_string(std::hash<std::string>()("2nd" + key));
  }

  torch::Tensor tensor(int rank, int sum) {
    return ranks_.tensor(rank, offset_of(sum), kNumel);
  }
  uint64_t offset_of(int sum) const {
    return static_cast<uint64_t>(sum % training_.memories) * 256;
  }

  /// Does the next step of the program. Returns false if the step has to wait.
  bool step(int rank) {
    auto& place = at_[static_cast<size_t>(rank)];
    if (place == training_.steps.size()) {
      return false;
    }
    const auto& [what, sum] = training_.steps[place];
    if (what == Training::What::start) {
      tensor(rank, sum).fill_(value_of(rank, sum));
      ranks_[rank].start(place_of(offset_of(sum), kNumel));
    } else {
      if (!ranks_[rank].is_done(static_cast<SumNumber>(sum + 1))) {
        return false;
      }
      float expected = 0;
      for (int other = 0; other < ranks_.size(); ++other) {
        expected += value_of(other, sum);
      }
      TORCH_CHECK(tensor(rank, sum).eq(expected).all().item<bool>(),
                  "rank ",
                  rank,
                  " got ",
                  tensor(rank, sum));
      tensor(rank, sum).fill_(-1000.0F - static_cast<float>(rank));
    }
    ++place;
    return true;
  }

  Ranks ranks_;
  const Training training_;
  std::vector<size_t> at_;  // by rank: next step
  std::unordered_set<std::string> seen_;
};

TEST_CASE("no order of steps gives a rank a wrong sum") {
  using What = Training::What;
  const int size = GENERATE(2, 3);
  const auto training = GENERATE(
      // one bucket, used twice
      Training{{{What::start, 0},
                {What::finish, 0},
                {What::start, 1},
                {What::finish, 1}},
               1},
      // two buckets in progress
      Training{{{What::start, 0},
                {What::start, 1},
                {What::finish, 0},
                {What::finish, 1},
                {What::start, 2},
                {What::finish, 2}},
               2},
      // a bucket starts again while others are in progress
      Training{{{What::start, 0},
                {What::start, 1},
                {What::start, 2},
                {What::finish, 0},
                {What::start, 3},
                {What::finish, 1},
                {What::finish, 2},
                {What::finish, 3}},
               3});
  Explorer explorer(size, training);
  const size_t states = explorer.run();
  INFO(states << " states");
  CHECK(states > 25);
}

// --- bits ---

TEST_CASE("a sum has the bits of a sum in the order of the ranks") {
  const int size = GENERATE(2, 3, 5);
  const int64_t numel = GENERATE(0, 1, 15, 100, 501);
  const auto dtype = GENERATE(torch::kFloat,
                              torch::kDouble,
                              torch::kHalf,
                              torch::kBFloat16,
                              torch::kLong,
                              torch::kByte);
  CAPTURE(size, numel, dtype);
  torch::manual_seed(7);
  Ranks ranks(size);
  torch::Tensor expected;
  for (int rank = 0; rank < size; ++rank) {
    const auto values = (torch::rand({numel}) * 40).to(dtype);
    ranks.tensor(rank, 64, numel, dtype).copy_(values);
    expected = rank == 0 ? values.clone() : expected + values;
    ranks[rank].start(place_of(64, numel, dtype));
  }
  ranks.advance_all();
  for (int rank = 0; rank < size; ++rank) {
    CHECK(ranks[rank].is_done(1));
    CHECK(ranks.tensor(rank, 64, numel, dtype).equal(expected));
  }
}

TEST_CASE("a rank may bring memory at another place") {
  Ranks ranks(2);
  ranks.tensor(0, 0, 20).fill_(1);
  ranks.tensor(1, 1024, 20).fill_(2);
  ranks[0].start(place_of(0, 20));
  ranks[1].start(place_of(1024, 20));
  ranks.advance_all();
  CHECK(ranks.tensor(0, 0, 20).eq(3).all().item<bool>());
  CHECK(ranks.tensor(1, 1024, 20).eq(3).all().item<bool>());
}

// --- refusals ---

TEST_CASE("all ranks learn that a tensor does not fit") {
  Ranks ranks(3);
  auto third = place_of(0, 10);
  std::string mismatch;
  SECTION("another size") {
    third.numel = 9;
    mismatch =
        "rank 0 brings 10 elements of Float, rank 2 brings 9 elements of Float";
  }
  SECTION("another dtype") {
    third.dtype = static_cast<int64_t>(torch::kInt);
    mismatch =
        "rank 0 brings 10 elements of Float, rank 2 brings 10 elements of Int";
  }
  ranks[0].start(place_of(0, 10));
  ranks[1].start(place_of(0, 10));
  ranks[2].start(third);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK_THROWS_WITH(ranks[rank].advance(), Contains(mismatch));
  }
}

TEST_CASE("a rank has room for a limited number of sums") {
  Ranks ranks(2);
  for (SumNumber i = 0; i < SumBoard::kPlaces; ++i) {
    CHECK(ranks[0].has_room());
    ranks[0].start(place_of(0, 4));
  }
  CHECK_FALSE(ranks[0].has_room());
  CHECK(ranks[0].awaited(SumBoard::kPlaces + 1).rank == 1);
  ranks[1].start(place_of(0, 4));
  ranks.advance_all();
  CHECK(ranks[0].has_room());
}

TEST_CASE("numbers of sums wrap around") {
  CHECK(has_reached(5, 5));
  CHECK(has_reached(6, 5));
  CHECK_FALSE(has_reached(4, 5));
  CHECK(has_reached(2, 0xFFFFFFFE));
  CHECK_FALSE(has_reached(0xFFFFFFFE, 2));
}

}  // namespace sum_protocol_test
}  // namespace ddp::detail
