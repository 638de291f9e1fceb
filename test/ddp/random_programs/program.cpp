#include "test/ddp/random_programs/program.h"

#include <algorithm>
#include <limits>

#include "test/support/dice.h"

namespace ddp::test {
namespace {

bool is_used(const Program& program, size_t part, Dice& dice, int rank) {
  const auto kind = program.parts[part].kind;
  const bool may_miss = kind == Part::Kind::branch
                            ? program.unused != Unused::refused
                            : kind == Part::Kind::silent;
  if (!may_miss) {
    return true;
  }
  if (program.unused == Unused::fixed) {
    return Dice(program.seed + part * 100 + rank).chance(60);
  }
  return dice.chance(60);
}

/// Returns the two inputs of a batch, a middle plus and minus a distance, and
/// the factor of each in the loss.
std::vector<int64_t> norm_numbers(Dice& dice) {
  const int64_t distance = 1 + dice.below(2);
  const int64_t middle = dice.below(4);
  return {middle - distance, middle + distance, dice.below(3), dice.below(3)};
}

std::vector<int64_t> numbers_of(const Part& part, Dice& dice) {
  if (part.kind == Part::Kind::norm) {
    return norm_numbers(dice);
  }
  const bool has_rows = part.kind == Part::Kind::rows;
  std::vector<int64_t> numbers(has_rows ? 2 : part.size);
  for (auto& number : numbers) {
    number = has_rows ? dice.below(3) : dice.below(4) - 1;
  }
  return numbers;
}

}  // namespace

int Act::fewest() const {
  return *std::min_element(counts.begin(), counts.end());
}

int Act::most() const {
  return *std::max_element(counts.begin(), counts.end());
}

bool Program::has(Part::Kind kind) const {
  return std::any_of(parts.begin(), parts.end(), [kind](const Part& part) {
    return part.kind == kind;
  });
}

Compared Program::compared(size_t act) const {
  if (!shards_model) {
    return {};
  }
  const auto kind = acts[act].kind;
  const bool is_chosen =
      act + 1 == acts.size() || Dice(seed * 100 + act).chance(50);
  // After a pass the ranks have to step before they read parameters.
  const bool may_read = kind != Act::Kind::train && kind != Act::Kind::pair;
  return {is_chosen && may_read, is_chosen || kind == Act::Kind::evaluate};
}

bool Program::travels_narrow() const {
  const auto wire = precision.reduce_dtype();
  return way != nullptr ? way->is_narrow
                        : wire && c10::elementSize(*wire) <
                                      c10::elementSize(torch::kFloat);
}

std::vector<torch::Tensor> inputs_of(const Program& program,
                                     size_t act,
                                     int forward,
                                     int rank) {
  Dice dice(((program.seed * 100 + act) * 100 + forward) * 10 + rank);
  const Act& now = program.acts[act];
  std::vector<torch::Tensor> inputs;
  for (size_t i = 0; i < program.parts.size(); ++i) {
    const Part& part = program.parts[i];
    const bool is_missed =
        now.kind == Act::Kind::miss && now.rank == rank && now.part == i;
    if (!is_used(program, i, dice, rank) || is_missed) {
      inputs.emplace_back();
      continue;
    }
    const auto input = torch::tensor(numbers_of(part, dice), torch::kLong);
    inputs.push_back(part.kind == Part::Kind::rows ? input
                                                   : input.to(torch::kDouble));
  }
  if (now.is_infinite && now.rank == rank && forward == 0) {
    inputs[now.part][0] = std::numeric_limits<double>::infinity();
  }
  return inputs;
}

}  // namespace ddp::test
