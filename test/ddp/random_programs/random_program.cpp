#include <algorithm>
#include <utility>

#include "test/ddp/random_programs/dice.h"
#include "test/ddp/random_programs/program.h"

namespace ddp::test {
namespace {

using Kind = Act::Kind;

/// All of what a program draws, in order.
class Author {
 public:
  explicit Author(uint64_t seed) : dice_(seed) { program_.seed = seed; }

  Program write() {
    choose_options();
    choose_parts();
    wrap();
    const int count = 4 + dice_.below(12);
    for (int i = 0; i < count; ++i) {
      add_any();
    }
    return std::move(program_);
  }

 private:
  void choose_options() {
    program_.size = 1 + dice_.below(4);
    program_.unused = dice_.any_of<Unused>(
        {Unused::refused, Unused::found, Unused::on_demand, Unused::fixed});
    program_.combine = dice_.any_of<Combine>({Combine::mean,
                                              Combine::mean,
                                              Combine::sum,
                                              Combine::predivided,
                                              Combine::checked,
                                              Combine::hook,
                                              Combine::narrow,
                                              Combine::weights,
                                              Combine::none,
                                              Combine::in_backward});
    program_.stepper = dice_.any_of<Stepper>({Stepper::sgd,
                                              Stepper::momentum,
                                              Stepper::fused_momentum,
                                              Stepper::adam,
                                              Stepper::fused_adam});
    program_.broadcasts = dice_.chance(70);
  }

  bool is_adam() const { return program_.stepper >= Stepper::adam; }

  void choose_parts() {
    program_.parts.push_back({Part::Kind::plain, torch::kFloat, 3, false});
    const int count = 1 + dice_.below(6);
    for (int i = 0; i < count; ++i) {
      Part part;
      part.kind = dice_.any_of<Part::Kind>({Part::Kind::plain,
                                            Part::Kind::plain,
                                            Part::Kind::branch,
                                            Part::Kind::branch,
                                            Part::Kind::tied,
                                            Part::Kind::product,
                                            Part::Kind::rows,
                                            Part::Kind::frozen,
                                            Part::Kind::ignored});
      // Adam takes no rows. What a product's gradients are is no integer.
      if ((part.kind == Part::Kind::rows && is_adam()) ||
          (part.kind == Part::Kind::product &&
           (program_.size > 2 || program_.combine == Combine::narrow ||
            program_.combine == Combine::weights))) {
        part.kind = Part::Kind::branch;
      }
      part.dtype =
          part.kind == Part::Kind::product || part.kind == Part::Kind::rows
              ? torch::kFloat
              : dice_.any_of<torch::Dtype>({torch::kFloat,
                                            torch::kFloat,
                                            torch::kDouble,
                                            torch::kBFloat16});
      part.size = dice_.any_of<int64_t>({0, 1, 2, 5, 40});
      part.is_checkpointed = part.kind != Part::Kind::rows && dice_.chance(20);
      program_.parts.push_back(part);
    }
  }

  Act& add(Kind kind) {
    Act act;
    act.kind = kind;
    act.who = dice_.below(program_.size);
    act.weights = weights();
    act.flag = dice_.chance(50);
    program_.acts.push_back(std::move(act));
    return program_.acts.back();
  }

  /// Sums by which twelve can be divided.
  std::vector<double> weights() {
    std::vector<double> all = std::vector<std::vector<double>>{
        {1}, {1, 3}, {0, 1, 2}, {1, 3, 0, 2}}[program_.size - 1];
    std::rotate(
        all.begin(), all.begin() + dice_.below(program_.size), all.end());
    return all;
  }

  void wrap() {
    if (frozen_ != 0) {
      freeze();
    }
    auto& act = add(Kind::wrap);
    act.bucket_cap_mb = dice_.any_of<double>({25, 1e-5, 1e-4});
    act.keeps_memory = dice_.chance(50);
    act.syncs = dice_.chance(80);
    has_trained_ = false;
  }

  void regroup() {
    // A static graph is learnt anew, and with it what never trains.
    if (frozen_ != 0 && program_.unused == Unused::fixed) {
      freeze();
    }
    add(Kind::regroup);
    has_trained_ = false;
  }

  /// One part at a time; 0 is none.
  void freeze() {
    if (frozen_ != 0) {
      add(Kind::freeze).part = std::exchange(frozen_, 0);
      return;
    }
    const auto part = static_cast<size_t>(
        dice_.below(static_cast<int>(program_.parts.size())));
    const auto kind = program_.parts[part].kind;
    // A static graph leaves out for good what nobody has used at first.
    if (part != 0 && kind != Part::Kind::frozen &&
        (program_.unused != Unused::fixed || has_trained_)) {
      frozen_ = part;
      add(Kind::freeze).part = part;
    }
  }

  void train() {
    auto& act = add(Kind::train);
    act.forwards = 1 + dice_.below(3);
    // Steps between two backwards change what the second has saved.
    const bool may_part =
        may_keep() && program_.combine != Combine::in_backward;
    act.clip = may_part && dice_.chance(30) ? 1 : 0;
    if (dice_.chance(15)) {
      act.hiccup = dice_.any_of<Act::Hiccup>(
          {Act::Hiccup::in_forward, Act::Hiccup::in_backward});
    }
    has_trained_ = true;
    step();
  }

  /// Whether gradients may be divided twice.
  bool may_keep() const {
    return program_.size != 3 && program_.combine != Combine::narrow &&
           program_.combine != Combine::weights &&
           std::none_of(
               program_.parts.begin(),
               program_.parts.end(),
               [](const Part& part) { return part.dtype == torch::kBFloat16; });
  }

  void step() {
    auto& act = add(Kind::step);
    if (may_keep() && dice_.chance(20)) {
      act.zero = Zero::keep;
      return;
    }
    act.zero = dice_.any_of<Zero>({Zero::to_none, Zero::to_zero});
    act.clip = dice_.chance(20) ? 4 : 0;
  }

  void gather() {
    auto& act = add(Kind::gather);
    for (int rank = 0; rank < program_.size; ++rank) {
      act.counts.push_back(dice_.below(3));
    }
    train();
  }

  void evaluate() {
    auto& act = add(Kind::evaluate);
    for (int rank = 0; rank < program_.size; ++rank) {
      act.counts.push_back(dice_.below(2));
    }
  }

  void join() {
    auto& act = add(Kind::join);
    const int fewest = program_.unused == Unused::fixed ? 1 : 0;
    for (int rank = 0; rank < program_.size; ++rank) {
      act.counts.push_back(fewest + dice_.below(4));
    }
    act.clip = dice_.chance(50) ? 1 : 0;
    act.forwards = may_keep() && !act.by_live() && dice_.chance(50) ? 2 : 1;
    act.zero = dice_.any_of<Zero>({Zero::to_none, Zero::to_zero});
    has_trained_ = true;
    step();
  }

  /// What has failed may have stepped in backward.
  bool may_fail() const {
    return program_.size > 1 && program_.combine != Combine::in_backward;
  }

  void miss() {
    const auto& parts = program_.parts;
    const auto part =
        std::find_if(parts.begin(), parts.end(), [](const Part& each) {
          return each.kind == Part::Kind::branch;
        });
    const auto index = static_cast<size_t>(part - parts.begin());
    if (may_fail() && program_.unused == Unused::refused &&
        part != parts.end() && frozen_ != index) {
      add(Kind::miss).part = index;
    }
  }

  void fail() {
    if (may_fail()) {
      add(Kind::fail);
      wrap();
    }
  }

  void add_any() {
    const int face = dice_.below(100);
    if (face < 40) {
      train();
    } else if (face < 55) {
      gather();
    } else if (face < 63) {
      evaluate();
    } else if (face < 71) {
      freeze();
    } else if (face < 81) {
      join();
    } else if (face < 85) {
      wrap();
    } else if (face < 89) {
      regroup();
    } else if (face < 94) {
      miss();
    } else {
      fail();
    }
  }

  Dice dice_;
  Program program_;
  size_t frozen_ = 0;
  bool has_trained_ = false;  // since it was wrapped
};

}  // namespace

Program random_program(uint64_t seed) {
  return Author(seed).write();
}

}  // namespace ddp::test
