#include "test/ddp/random_resumes/training.h"

#include <algorithm>
#include <sstream>

#include "test/support/dice.h"

namespace ddp::test {
namespace {

template <class Kind, class Fused, class Options>
std::unique_ptr<Optimizer> make(const Groups& groups,
                                bool is_fused,
                                const Options& options) {
  return is_fused ? made<Fused>(groups, options) : made<Kind>(groups, options);
}

const std::vector<const char*> kKinds{"SGD",
                                      "SGD, momentum",
                                      "SGD, Nesterov",
                                      "Adam",
                                      "Adam, amsgrad",
                                      "AdamW",
                                      "RMSprop",
                                      "RMSprop, centered",
                                      "Adagrad"};
constexpr size_t kAdagrad = 8;

bool has_fused(size_t kind) {
  return kind < 6;
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const Training& training,
                                          bool is_fused,
                                          const Groups& groups) {
  using namespace torch::optim;
  switch (training.kind) {
    case 0:
      return make<SGD, FusedSGD>(groups, is_fused, SGDOptions(0.1));
    case 1:
      return make<SGD, FusedSGD>(
          groups, is_fused, SGDOptions(0.1).momentum(0.9).dampening(0.5));
    case 2:
      return make<SGD, FusedSGD>(
          groups,
          is_fused,
          SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
    case 3:
      return make<Adam, FusedAdam>(groups, is_fused, AdamOptions(0.01));
    case 4:
      return make<Adam, FusedAdam>(
          groups, is_fused, AdamOptions(0.01).amsgrad(true).weight_decay(0.1));
    case 5:
      return make<AdamW, FusedAdamW>(groups, is_fused, AdamWOptions(0.01));
    case 6:
      return made<RMSprop>(groups, RMSpropOptions(0.01));
    case 7:
      return made<RMSprop>(groups,
                           RMSpropOptions(0.01).momentum(0.9).centered(true));
    default:
      return made<Adagrad>(groups, AdagradOptions(0.1).lr_decay(0.01));
  }
}

Training random_training(uint64_t seed) {
  Dice dice(seed);
  Training training;
  training.seed = seed;
  training.kind = dice.below(static_cast<int>(kKinds.size()));
  training.is_scaled = dice.chance(40);
  const std::vector<std::vector<int64_t>> sizes{
      {}, {0}, {1}, {7}, {3, 5}, {64}, {65}, {61, 67}, {2, 3, 5, 7}, {4096}};
  training.groups = {0};
  const size_t steps = dice.below(10) + 2;
  for (int more = dice.below(3); more > 0; --more) {
    // LibTorch's Adagrad creates states only for the parameters of its
    // constructor.
    const bool comes_late = training.kind != kAdagrad && dice.chance(50);
    training.groups.push_back(comes_late ? dice.below(steps) : 0);
  }
  std::sort(training.groups.begin(), training.groups.end());
  for (int i = dice.below(6); i >= 0; --i) {
    training.parameters.push_back(
        {dice.any_of(sizes),
         dice.any_of<torch::Dtype>(
             {torch::kFloat, torch::kFloat, torch::kDouble, torch::kBFloat16}),
         static_cast<size_t>(
             dice.below(static_cast<int>(training.groups.size())))});
  }
  training.parameters[0] = {{dice.below(100) + 1}, torch::kFloat, 0};
  for (size_t step = 0; step < steps; ++step) {
    auto& next = training.steps.emplace_back();
    for (size_t i = 0; i < training.parameters.size(); ++i) {
      next.missing.push_back(i > 0 && dice.chance(20));
    }
    next.overflows = training.is_scaled && dice.chance(25);
    next.rate = dice.chance(20) ? 0.005 * (dice.below(4) + 1) : 0;
  }
  using Holder = Training::Holder;
  std::vector<Holder> holders{Holder::plain, Holder::zero};
  if (has_fused(training.kind) && dice.chance(40)) {
    holders.push_back(Holder::fused);
  }
  for (size_t end = 0; end < steps;) {
    end = std::min(end + dice.below(4) + 1, steps);
    training.parts.push_back({dice.below(4) + 1,
                              dice.any_of(holders),
                              end,
                              dice.chance(30),
                              end < steps && dice.chance(20)});
  }
  return training;
}

std::string describe(const Training& training) {
  std::ostringstream text;
  text << "seed " << training.seed << ": " << kKinds[training.kind]
       << (training.is_scaled ? ", scaled" : "") << "\nparameters";
  for (const auto& parameter : training.parameters) {
    text << " " << at::IntArrayRef(parameter.sizes) << " "
         << c10::toString(c10::typeMetaToScalarType(
                c10::scalarTypeToTypeMeta(parameter.dtype)))
         << " of group " << parameter.group << ",";
  }
  text << "\ngroups come before steps "
       << at::ArrayRef<size_t>(training.groups);
  for (size_t i = 0; i < training.steps.size(); ++i) {
    const auto& step = training.steps[i];
    text << "\nstep " << i << (step.overflows ? " overflows" : "") << ", rate "
         << step.rate << ", missing";
    for (size_t p = 0; p < step.missing.size(); ++p) {
      text << (step.missing[p] ? " " + std::to_string(p) : "");
    }
  }
  for (const auto& part : training.parts) {
    text << "\npart of " << part.ranks << " ranks, holder "
         << static_cast<int>(part.holder) << ", to step " << part.end
         << (part.in_background ? ", in background" : "")
         << (part.loses_newest ? ", loses newest" : "");
  }
  return text.str();
}

}  // namespace ddp::test
