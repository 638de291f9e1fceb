#include "test/ddp/random_programs/plain_copies.h"

#include <torch/utils.h>

namespace ddp::test {

void copy_parameters(const Program& program,
                     const Learners& ranks,
                     int source) {
  const torch::NoGradGuard no_grad;
  const auto& from = ranks[source]->net->named_parameters();
  for (auto& learner : ranks) {
    for (auto& item : learner->net->named_parameters()) {
      if (!is_ignored(program, item.key())) {
        item.value().copy_(from[item.key()].detach());
      }
    }
  }
}

void copy_buffers(const Program& program, const Learners& ranks, int source) {
  const auto& from = ranks[source]->net->named_buffers();
  for (auto& learner : ranks) {
    for (auto& item : learner->net->named_buffers()) {
      if (!is_ignored(program, item.key())) {
        item.value().copy_(from[item.key()]);
      }
    }
  }
}

void copy_file(const Program& program, const Learners& ranks, size_t act) {
  const torch::NoGradGuard no_grad;
  const auto source = net_in_file(program, act);
  const auto& now = program.acts[act];
  const auto module =
      now.file == File::submodule ? name_of(now.part) + "." : std::string();
  for (auto& learner : ranks) {
    for (auto& item : learner->net->named_parameters()) {
      if (item.key().rfind(module, 0) == 0) {
        item.value().copy_(source->named_parameters()[item.key()]);
      }
    }
    for (auto& item : learner->net->named_buffers()) {
      if (item.key().rfind(module, 0) == 0) {
        item.value().copy_(source->named_buffers()[item.key()]);
      }
    }
  }
}

}  // namespace ddp::test
