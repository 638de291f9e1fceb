#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "test/fake_gpu/control.h"
#include "test/gpu/nccl_ranks.h"

/// Experiments that lose each wait of a stream for an event in a training step
/// once. Under some schedule the results of the step must then be wrong, or the
/// wait was not needed.
namespace fake_gpu::test {

constexpr int kRanks = 2;

/// The training of one rank. Every step has different results.
class Trainer {
 public:
  virtual ~Trainer() = default;
  /// Begins a step. Returns false if the model refuses another pass, because of
  /// an error of the last one.
  virtual bool forward() = 0;
  virtual void backward() = 0;
  /// Waits for the results. Returns true if they belong to this step.
  virtual bool is_right() = 0;
};

/// Observations of one rank in one step.
struct Seen {
  bool accepts = false;  // the model accepts the pass
  bool right = false;    // the results are right
  LostWait fate = LostWait::none;
};
using AllSeen = std::array<Seen, kRanks>;

/// Result of losing the wait with one number, over ranks and schedules.
struct Loss {
  bool exists = false;  // the step has a wait with this number
  bool caught = false;
  bool needed = false;  // in some schedule nothing replaced it
};

/// The parts of an experiment that differ between trainings.
struct Subject {
  /// Makes the trainer of this rank. Called again after an error.
  std::function<std::unique_ptr<Trainer>()> make;
  /// Returns true for the number of a wait that is not needed, although no wait
  /// replaces it at once.
  std::function<bool(uint64_t n)> is_redundant;
};

/// Loses each wait of a step in turn and returns the results, from the first
/// wait on. Called by all ranks, which get the same results.
/// @param seen  of all ranks, in memory that they share.
std::vector<Loss> lose_each_wait(const ddp::test::NcclRank& rank,
                                 const Subject& subject,
                                 AllSeen& seen);

/// Repeats `experiment` until the loss of each needed wait was caught once.
/// Returns the results together. New groups and streams change the orders that
/// a schedule draws: about one experiment in eight does not detect the loss of
/// NCCL's wait for a used map, under any of its schedules.
std::vector<Loss> repeat_until_caught(
    const std::function<std::vector<Loss>()>& experiment);

/// Returns true if the loss of each needed wait was caught.
bool are_caught(const std::vector<Loss>& losses);
int count_caught(const std::vector<Loss>& losses);
/// Returns a line for each wait.
std::string table_of(const std::vector<Loss>& losses);

}  // namespace fake_gpu::test
