#include "test/ddp/random_programs/program.h"

#include <sstream>

#include "test/ddp/random_programs/dice.h"

namespace ddp::test {
namespace {

bool is_used(const Program& program, size_t part, Dice& dice, int rank) {
  if (program.parts[part].kind != Part::Kind::branch ||
      program.unused == Unused::refused) {
    return true;
  }
  if (program.unused == Unused::fixed) {
    return Dice(program.seed + part * 100 + rank).chance(60);
  }
  return dice.chance(60);
}

}  // namespace

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
        now.kind == Act::Kind::miss && now.who == rank && now.part == i;
    if (!is_used(program, i, dice, rank) || is_missed) {
      inputs.emplace_back();
      continue;
    }
    const bool has_rows = part.kind == Part::Kind::rows;
    std::vector<int64_t> numbers(has_rows ? 2 : part.size);
    for (auto& number : numbers) {
      number = has_rows ? dice.below(3) : dice.below(4) - 1;
    }
    const auto input = torch::tensor(numbers, torch::kLong);
    inputs.push_back(has_rows ? input : input.to(torch::kDouble));
  }
  return inputs;
}

std::string describe(const Program& program) {
  std::ostringstream text;
  text << "seed " << program.seed << ": " << program.size << " ranks, unused "
       << int(program.unused) << ", combine " << int(program.combine)
       << ", stepper " << int(program.stepper) << ", broadcasts "
       << program.broadcasts << ", parts";
  for (const auto& part : program.parts) {
    text << " (" << int(part.kind) << " " << part.dtype << " " << part.size
         << (part.is_checkpointed ? " checkpointed)" : ")");
  }
  for (size_t i = 0; i < program.acts.size(); ++i) {
    text << "\n  " << i << " " << describe(program.acts[i]);
  }
  return text.str();
}

std::string describe(const Act& act) {
  static const std::vector<std::string> kNames{"wrap",
                                               "regroup",
                                               "train",
                                               "gather",
                                               "evaluate",
                                               "step",
                                               "freeze",
                                               "join",
                                               "miss",
                                               "fail"};
  std::ostringstream text;
  text << kNames[static_cast<size_t>(act.kind)] << " who " << act.who
       << " part " << act.part << " forwards " << act.forwards << " hiccup "
       << int(act.hiccup) << " flag " << act.flag << " zero " << int(act.zero)
       << " clip " << act.clip << " cap " << act.bucket_cap_mb << " view "
       << act.keeps_memory << " syncs " << act.syncs << " counts";
  for (const int count : act.counts) {
    text << " " << count;
  }
  return text.str();
}

}  // namespace ddp::test
