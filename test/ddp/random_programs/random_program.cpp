#include <algorithm>
#include <array>
#include <utility>

#include "test/ddp/random_programs/random_options.h"

namespace ddp::test {
namespace {

using Kind = Act::Kind;

/// Draws all parts of a program, in order.
class ProgramGenerator {
 public:
  explicit ProgramGenerator(uint64_t seed)
      : dice_(seed), program_(random_options(seed, dice_)) {}

  Program write() {
    for (model_ = 0; model_ < program_.models; ++model_) {
      wrap();
    }
    const int count = 4 + dice_.below(12);
    for (int i = 0; i < count && !has_ended_; ++i) {
      model_ = dice_.below(program_.models);
      add_any();
    }
    return std::move(program_);
  }

 private:
  Act& add(Kind kind) {
    Act act;
    act.kind = kind;
    act.model = model_;
    act.wrapper = wrapper();
    act.rank = dice_.below(program_.size);
    act.flag = dice_.chance(50);
    program_.acts.push_back(std::move(act));
    return program_.acts.back();
  }

  std::vector<int> counts(int fewest, int limit) {
    std::vector<int> all;
    for (int rank = 0; rank < program_.size; ++rank) {
      all.push_back(fewest + dice_.below(limit));
    }
    if (program_.gathers_shards) {
      std::fill(all.begin(), all.end(), all.front());
    }
    return all;
  }

  std::vector<size_t>& frozen() { return frozen_[model_]; }
  int& wrapper() { return wrapper_[model_]; }
  bool& has_trained() { return has_trained_[model_][wrapper()]; }

  void wrap() {
    thaw_all();
    auto& act = add(Kind::wrap);
    act.bucket_cap_mb = dice_.any_of<double>({25, 1e-5, 1e-4});
    act.first_cap_mb = dice_.any_of<double>({1, act.bucket_cap_mb});
    act.keeps_memory = !program_.shards_model && dice_.chance(50);
    // Ranks of a sharded optimizer have to start with equal parameters.
    act.syncs = program_.shards_optimizer() || program_.shards_model ||
                dice_.chance(80);
    has_trained() = false;
  }

  /// Wraps the module a second time; the first wrapper stays.
  void wrap_again() {
    wrapper() = 1 - wrapper();
    wrap();
    has_two_[model_] = true;
  }

  /// Selects a wrapper. If it has not trained, it has not recorded its static
  /// graph, so no part may be frozen.
  void use(int wrapper) {
    if (this->wrapper() == wrapper) {
      return;
    }
    if (program_.unused == Unused::fixed) {
      thaw_all();
    }
    this->wrapper() = wrapper;
  }

  void train_other() {
    if (has_two_[model_]) {
      use(1 - wrapper());
      train();
    }
  }

  void regroup() {
    // A new group records the static graph again. A part that is frozen during
    // the recording would never train.
    if (program_.unused == Unused::fixed) {
      thaw_all();
    }
    add(Kind::regroup);
    has_trained() = false;
  }

  void thaw_all() {
    while (!frozen().empty()) {
      thaw();
    }
  }

  /// Unfreezes one of the frozen parts.
  void thaw() {
    const auto part =
        frozen().begin() + dice_.below(static_cast<int>(frozen().size()));
    add(Kind::freeze).part = *part;
    frozen().erase(part);
  }

  bool is_frozen(size_t part) {
    return std::count(frozen().begin(), frozen().end(), part) > 0;
  }

  /// Freezes one or several parts, one after the other, or unfreezes one part.
  void freeze() {
    if (!frozen().empty() && dice_.chance(60)) {
      return thaw();
    }
    for (int count = 1 + dice_.below(3); count > 0; --count) {
      const auto part = static_cast<size_t>(
          dice_.below(static_cast<int>(program_.parts.size())));
      const auto kind = program_.parts[part].kind;
      // A static graph permanently leaves out parameters that no rank uses in
      // the first pass.
      if (part != 0 && kind != Part::Kind::frozen && !is_frozen(part) &&
          (program_.unused != Unused::fixed || has_trained())) {
        frozen().push_back(part);
        add(Kind::freeze).part = part;
      }
    }
  }

  /// Returns a matrix if the exchange compresses matrices, else part 0.
  size_t infinite_part() const {
    const auto& parts = program_.parts;
    const auto part =
        std::find_if(parts.begin(), parts.end(), [](const Part& each) {
          return each.kind == Part::Kind::matrix && each.size > 0;
        });
    return program_.only_matrices() && part != parts.end()
               ? part - parts.begin()
               : 0;
  }

  void train() {
    auto& act = add(Kind::train);
    act.forwards = 1 + dice_.below(3);
    act.is_infinite = program_.scales && dice_.chance(25);
    act.part = act.is_infinite ? infinite_part() : 0;
    act.in_threads = dice_.chance(10);
    // Steps between two backward passes change tensors that the second pass has
    // saved.
    // No forward of a sharded model outlives a backward pass.
    const bool may_part = may_keep(program_) && !program_.shards_model;
    act.clip = may_part && dice_.chance(30) ? 1 : 0;
    act.repeats = may_part && dice_.chance(15) ? 2 : 1;
    if (!program_.gathers_shards && dice_.chance(20)) {
      act.local_failure =
          dice_.any_of<Act::LocalFailure>({Act::LocalFailure::in_forward,
                                           Act::LocalFailure::in_backward,
                                           Act::LocalFailure::no_backward,
                                           Act::LocalFailure::inspection});
    }
    has_trained() = true;
    const bool steps_elsewhere = program_.shards_model && act.in_threads;
    step();
    // If the step and the backward pass run on different threads, other ranks
    // see the end of the step only when this rank begins a forward.
    if (steps_elsewhere) {
      add(Kind::evaluate).counts.assign(program_.size, 1);
    }
  }

  void step() {
    auto& act = add(Kind::step);
    if (may_keep(program_) && dice_.chance(20)) {
      act.zero = Zero::keep;
      return;
    }
    act.zero = dice_.any_of<Zero>({Zero::to_none, Zero::to_zero});
    // The norm of shards equals the norm of the whole model only up to
    // rounding.
    act.clip = !program_.shards_model && dice_.chance(20) ? 4 : 0;
  }

  void pair() {
    if (program_.models < 2) {
      return;
    }
    for (model_ = 0; model_ < program_.models; ++model_) {
      use(0);
    }
    model_ = 0;
    add(Kind::pair).forwards = 1 + dice_.below(2);
    for (model_ = 0; model_ < program_.models; ++model_) {
      has_trained() = true;
      step();
    }
  }

  void gather() {
    auto& act = add(Kind::gather);
    act.counts = counts(0, 3);
    act.flag = act.flag && !program_.shards_model;
    train();
  }

  void load() {
    const auto& parts = program_.parts;
    const auto module =
        std::find_if(parts.begin(), parts.end(), [](const Part& each) {
          return each.kind == Part::Kind::rows || each.kind == Part::Kind::norm;
        });
    auto& act = add(Kind::load);
    act.file = dice_.any_of<File>(
        {File::module, File::wrapper, File::submodule, File::checkpoint});
    if (program_.shards_model) {
      act.file = File::checkpoint;
    } else if (act.file == File::submodule && module == parts.end()) {
      act.file = File::module;
    } else if (act.file == File::submodule) {
      act.part = module - parts.begin();
    }
    train();
  }

  void change(Kind kind) {
    add(kind);
    train();
  }

  /// Adds a preset act, except in two cases. The step of a sharded optimizer
  /// would give all ranks the result of one rank for parameters that no rank
  /// averages. In a narrow dtype the sum with the gradients of three forwards
  /// may exceed the exact integers. Gradients of rows are dense only without
  /// momentum: LibTorch's sparse momentum accepts no dense gradient.
  void preset() {
    if (program_.shards_optimizer() || program_.travels_narrow()) {
      return;
    }
    auto& act = add(Kind::preset);
    act.flag = act.flag && program_.stepper == Stepper::sgd;
    train();
  }

  void evaluate() { add(Kind::evaluate).counts = counts(0, 2); }

  /// A static graph needs a first pass.
  int fewest_inputs() const { return program_.unused == Unused::fixed ? 1 : 0; }

  /// A buffer hook and a scaler do not know which ranks have inputs.
  bool may_join() const {
    return program_.buffers != Buffers::averaged && !program_.scales;
  }

  void join() {
    if (!may_join()) {
      return;
    }
    auto& act = add(Kind::join);
    act.counts = counts(fewest_inputs(), 4);
    // If the step is a collective, all ranks have to make it. Lossy gradients
    // are only compared between ranks, so the momenta must not differ.
    const bool steps_all = program_.shards_optimizer() || program_.is_lossy();
    act.clip = !steps_all && dice_.chance(50) ? 1 : 0;
    act.forwards = may_keep(program_) && !program_.shards_optimizer() &&
                           !act.by_live() && dice_.chance(50)
                       ? 2
                       : 1;
    act.zero = program_.shards_optimizer()
                   ? Zero::to_none
                   : dice_.any_of<Zero>({Zero::to_none, Zero::to_zero});
    has_trained() = true;
    step();
  }

  void join_in_part(Kind kind) {
    if (!may_join() && kind == Kind::leave) {
      return;
    }
    auto& act = add(kind);
    act.counts = counts(fewest_inputs(), 3);
    act.zero = dice_.any_of<Zero>({Zero::to_none, Zero::to_zero});
    has_trained() = has_trained() || act.fewest() > 0;
  }

  /// Returns whether acts may fail.
  bool may_fail() const { return program_.size > 1; }

  void miss() {
    if (program_.gathers_shards) {
      return;
    }
    const auto& parts = program_.parts;
    const auto part =
        std::find_if(parts.begin(), parts.end(), [](const Part& each) {
          return each.kind == Part::Kind::branch;
        });
    const auto index = static_cast<size_t>(part - parts.begin());
    if (may_fail() && program_.unused == Unused::refused &&
        part != parts.end() && !is_frozen(index)) {
      add(Kind::miss).part = index;
      has_ended_ = true;
    }
  }

  void fail() {
    if (may_fail()) {
      add(Kind::fail);
      has_ended_ = true;
    }
  }

  /// A FullyShardedDataParallel supports the first acts.
  void add_any() {
    const int face = dice_.below(program_.shards_model ? 82 : 119);
    if (face < 34) {
      train();
    } else if (face < 38) {
      pair();
    } else if (face < 52) {
      gather();
    } else if (face < 59) {
      evaluate();
    } else if (face < 67) {
      freeze();
    } else if (face < 71) {
      miss();
    } else if (face < 75) {
      fail();
    } else if (face < 82) {
      load();
    } else if (face < 92) {
      join();
    } else if (face < 95) {
      join_in_part(Kind::outrun);
    } else if (face < 98) {
      join_in_part(Kind::leave);
    } else if (face < 101) {
      wrap();
    } else if (face < 104) {
      regroup();
    } else if (face < 107) {
      change(Kind::replace);
    } else if (face < 110) {
      change(Kind::convert);
    } else if (face < 113) {
      preset();
    } else if (face < 115) {
      wrap_again();
    } else {
      train_other();
    }
  }

  Dice dice_;
  Program program_;
  int model_ = 0;
  bool has_ended_ = false;  // a failed pass ends the training of all ranks
  // Indexed by model.
  std::array<std::vector<size_t>, 2> frozen_;
  std::array<int, 2> wrapper_{};
  std::array<bool, 2> has_two_{};
  std::array<std::array<bool, 2>, 2> has_trained_{};  // since wrap()
};

}  // namespace

Program random_program(uint64_t seed) {
  return ProgramGenerator(seed).write();
}

}  // namespace ddp::test
