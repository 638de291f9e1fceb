#include "test/fake_gpu/tests/lost_waits.h"

#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <sstream>

namespace fake_gpu::test {
namespace {

using ddp::test::NcclRank;

struct Schedule {
  Mode mode;
  uint64_t seed;
};

/// The schedules: lazy first, then random priorities. Some detect losses that
/// others do not. Four have been enough.
constexpr uint64_t kSchedules = 12;
Schedule schedule_of(uint64_t i) {
  return {i == 0 ? Mode::lazy : Mode::priority, i};
}

bool all_of(const AllSeen& all, bool Seen::*what) {
  return std::all_of(
      all.begin(), all.end(), [what](const Seen& one) { return one.*what; });
}

/// One rank of the experiment.
class Experiment {
 public:
  Experiment(const NcclRank& rank, const Subject& subject, AllSeen& seen)
      : rank_(rank), subject_(subject), seen_(seen) {
    renew();
  }

  std::vector<Loss> run() {
    rank_.expect(recovers(), "a model refuses a pass with all waits");
    std::vector<Loss> losses;
    for (uint64_t n = 1;; ++n) {
      const Loss loss = lose(n);
      if (!loss.exists) {
        return losses;
      }
      losses.push_back(loss);
    }
  }

 private:
  /// Runs steps without the n-th wait, until a schedule detects the loss or two
  /// schedules have shown that the wait was not needed.
  Loss lose(uint64_t n) {
    Loss loss;
    for (uint64_t i = 0; i < kSchedules && !loss.caught; ++i) {
      if (i == 2 && !loss.needed) {
        break;
      }
      set([&] {
        schedule(schedule_of(i).mode, schedule_of(i).seed);
        lose_wait(n);
      });
      const auto seen = step();
      for (const Seen& one : seen) {
        loss.exists |= one.fate != LostWait::none;
        loss.needed |=
            one.fate == LostWait::missing && !subject_.is_redundant(n);
      }
      set([] { lose_wait(0); });
      const bool is_known_later = !recovers();
      loss.caught |= !all_of(seen, &Seen::right) || is_known_later;
    }
    return loss;
  }

  /// Runs steps until all ranks are right again; an error may appear in two
  /// steps. Returns false if a model has refused a pass; all ranks then have
  /// new models.
  bool recovers() {
    constexpr int kPatience = 8;
    bool accepted = true;
    int right_steps = 0;
    for (int i = 0; right_steps < 2; ++i) {
      rank_.expect(i < kPatience, "wrong results with all waits");
      const auto seen = step();
      right_steps = all_of(seen, &Seen::right) ? right_steps + 1 : 0;
      if (!all_of(seen, &Seen::accepts)) {
        accepted = false;
        renew();
      }
    }
    return accepted;
  }

  /// Runs a step and returns the observations of all ranks. If one rank refuses
  /// the pass, no rank runs it, because the others would wait for that rank.
  AllSeen step() {
    Seen& mine = seen_.at(static_cast<size_t>(rank_.rank));
    mine = {};
    mine.accepts = trainer_->forward();
    rank_.meet();
    if (all_of(seen_, &Seen::accepts)) {
      trainer_->backward();
      rank_.meet();  // all operations are queued before the first wait
      mine.right = trainer_->is_right();
    }
    mine.fate = lost_wait(rank_.rank);
    c10::cuda::device_synchronize();  // pass outcomes have arrived, too
    rank_.meet();
    const auto seen = seen_;
    rank_.meet();
    return seen;
  }

  void renew() {
    trainer_.reset();
    trainer_ = subject_.make();
  }

  /// Runs `action` on all ranks, which have one stand-in or one each, between
  /// two of their barriers.
  template <typename Action>
  void set(const Action& action) {
    rank_.meet();
    action();
    rank_.meet();
  }

  const NcclRank& rank_;
  const Subject& subject_;
  AllSeen& seen_;  // by rank
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace

std::vector<Loss> lose_each_wait(const NcclRank& rank,
                                 const Subject& subject,
                                 AllSeen& seen) {
  return Experiment(rank, subject, seen).run();
}

std::vector<Loss> repeat_until_caught(
    const std::function<std::vector<Loss>()>& experiment) {
  constexpr int kExperiments = 8;
  std::vector<Loss> all;
  for (int i = 0; i < kExperiments && (i == 0 || !are_caught(all)); ++i) {
    const auto losses = experiment();
    all.resize(std::max(all.size(), losses.size()));
    for (size_t n = 0; n < losses.size(); ++n) {
      all[n].exists |= losses[n].exists;
      all[n].caught |= losses[n].caught;
      all[n].needed |= losses[n].needed;
    }
  }
  return all;
}

bool are_caught(const std::vector<Loss>& losses) {
  return std::all_of(losses.begin(), losses.end(), [](const Loss& loss) {
    return loss.caught || !loss.needed;
  });
}

int count_caught(const std::vector<Loss>& losses) {
  return static_cast<int>(
      std::count_if(losses.begin(), losses.end(), [](const Loss& loss) {
        return loss.caught;
      }));
}

std::string table_of(const std::vector<Loss>& losses) {
  std::ostringstream table;
  for (size_t i = 0; i < losses.size(); ++i) {
    table << "wait " << i + 1
          << (losses[i].caught ? ": caught" : ": not caught")
          << (losses[i].needed ? "" : ", redundant") << '\n';
  }
  return table.str();
}

}  // namespace fake_gpu::test
