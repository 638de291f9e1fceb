#include "test/ddp/random_programs/random_options.h"

#include <algorithm>

namespace ddp::test {
namespace {

constexpr auto kNarrow = torch::kBFloat16;

using Result = ExchangeWay::Result;

const ExchangeWay* random_way(Dice& dice) {
  std::vector<const ExchangeWay*> all{nullptr, nullptr, nullptr};
  for (const auto& way : exchange_ways()) {
    if (way.in_programs) {
      all.push_back(&way);
    }
  }
  return dice.any_of(all);
}

Stepper random_stepper(const Program& program, Dice& dice) {
  std::vector<Stepper> all{
      Stepper::sgd, Stepper::momentum, Stepper::fused_momentum};
  if (!program.is_lossy()) {
    all.insert(all.end(), {Stepper::adam, Stepper::fused_adam});
  }
  // Sharded optimizers require gradients that are equal on all ranks, and whole
  // parameters.
  if (program.result() != Result::own && !program.shards_model) {
    all.push_back(Stepper::sharded_momentum);
    if (!program.is_lossy()) {
      all.push_back(Stepper::sharded_adam);
    }
  }
  return dice.any_of(all);
}

MixedPrecision random_precision(const Program& program, Dice& dice) {
  using Dtype = std::optional<torch::Dtype>;
  MixedPrecision precision;
  // Scaled gradients may be too large for half.
  const Dtype small = program.scales ? kNarrow : torch::kHalf;
  if (program.way == nullptr) {
    precision.reduce_dtype(dice.any_of<Dtype>(
        {std::nullopt, kNarrow, small, torch::kFloat, torch::kDouble}));
  }
  precision.buffer_dtype(
      dice.any_of<Dtype>({std::nullopt, kNarrow, torch::kFloat}));
  return precision;
}

bool may_scale(const Program& program) {
  return program.way == nullptr || !program.way->spreads_infinity;
}

void choose_options(Program& program, Dice& dice) {
  program.size = 1 + dice.below(4);
  program.models = dice.chance(20) ? 2 : 1;
  program.unused =
      dice.any_of<Unused>({Unused::refused, Unused::found, Unused::fixed});
  program.shards_model = dice.chance(25);
  if (program.shards_model) {
    program.gathers_shards = dice.chance(50);
    program.unused =
        program.gathers_shards
            ? Unused::refused
            : dice.any_of<Unused>({Unused::refused, Unused::found});
  } else {
    program.way = random_way(dice);
  }
  program.stepper = random_stepper(program, dice);
  program.scales = may_scale(program) && dice.chance(30);
  if (!program.shards_model && dice.chance(30)) {
    program.precision = random_precision(program, dice);
  }
  program.buffers = dice.any_of<Buffers>(
      {Buffers::own, Buffers::broadcast, Buffers::broadcast});
  // A mean of two values is exact.
  if (program.size <= 2 && !program.precision.buffer_dtype() &&
      dice.chance(20)) {
    program.buffers = Buffers::averaged;
  }
}

/// Returns whether the options do not support a kind of part; a branch replaces
/// the part.
bool is_refused(const Program& program, Part::Kind kind) {
  switch (kind) {
    case Part::Kind::product:  // gradients are no integers
      return program.size > 2 || program.is_lossy() || program.travels_narrow();
    case Part::Kind::rows:
      return program.is_adam() || program.shards_model ||
             (program.way != nullptr && !program.way->takes_sparse);
    case Part::Kind::norm:  // buffers are float
      return program.precision.buffer_dtype().has_value();
    case Part::Kind::silent:  // the use differs between ranks
      return program.gathers_shards;
    case Part::Kind::ignored:  // differs between ranks
      return program.shards_optimizer() || program.shards_model;
    default:
      return false;
  }
}

Part random_part(const Program& program, Dice& dice) {
  using Kind = Part::Kind;
  Part part;
  part.kind = dice.any_of<Kind>({Kind::plain,
                                 Kind::plain,
                                 Kind::branch,
                                 Kind::branch,
                                 Kind::branch,
                                 Kind::tied,
                                 Kind::product,
                                 Kind::matrix,
                                 Kind::rows,
                                 Kind::norm,
                                 Kind::frozen,
                                 Kind::ignored,
                                 Kind::silent,
                                 Kind::silent});
  if (is_refused(program, part.kind)) {
    part.kind = Kind::branch;
  }
  const bool is_float = part.kind == Kind::product || part.kind == Kind::rows ||
                        part.kind == Kind::norm;
  part.dtype = is_float ? torch::kFloat
                        : dice.any_of<torch::Dtype>({torch::kFloat,
                                                     torch::kFloat,
                                                     torch::kDouble,
                                                     torch::kBFloat16});
  part.size = dice.any_of<int64_t>({0, 1, 2, 5, 40});
  // The smallest shard has 4096 elements.
  if (program.shards_model && dice.chance(40)) {
    part.size = dice.any_of<int64_t>({1500, 5000, 20'000});
  }
  const bool may_forget = part.kind != Kind::rows && part.kind != Kind::norm;
  if (may_forget && dice.chance(25)) {
    part.memory = dice.any_of<Part::Memory>(
        {Part::Memory::checkpointed, Part::Memory::nested});
  }
  return part;
}

}  // namespace

Program random_options(uint64_t seed, Dice& dice) {
  Program program;
  program.seed = seed;
  choose_options(program, dice);
  program.parts.emplace_back();
  program.parts.back().size = 3;
  const int count = 1 + dice.below(6);
  for (int i = 0; i < count; ++i) {
    program.parts.push_back(random_part(program, dice));
  }
  return program;
}

bool may_keep(const Program& program) {
  // Shards add means. The sum is exact only for integers.
  return program.size != 3 && !program.is_lossy() && !program.scales &&
         !program.travels_narrow() &&
         !(program.shards_model && program.has(Part::Kind::product)) &&
         std::none_of(program.parts.begin(),
                      program.parts.end(),
                      [](const Part& part) { return part.dtype == kNarrow; });
}

}  // namespace ddp::test
