#include "dp/servers/detail/gradients.h"

#include <algorithm>
#include <utility>

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

namespace dp::detail {

std::string presence_problem(const Presence& presence, size_t parameters) {
  if (presence.size() != parameters) {
    return c10::str(
        "gradients of ", presence.size(), " parameters, not of ", parameters);
  }
  const bool is_known =
      std::all_of(presence.begin(), presence.end(), [](int64_t is_there) {
        return is_there == 0 || is_there == 1;
      });
  return is_known ? "" : "a gradient that is neither there nor missing";
}

Presence copy_gradients(const std::vector<at::Tensor>& parameters,
                        const FlatTensors& memory) {
  const c10::NoGradGuard no_grad;
  Presence presence;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto gradient = parameters[i].grad();
    presence.push_back(gradient.defined() ? 1 : 0);
    if (gradient.defined()) {
      at::Tensor(memory.pieces()[i])
          .copy_(gradient.layout() == at::kStrided ? gradient
                                                   : gradient.to_dense());
    }
  }
  return presence;
}

void GradientSum::add(const FlatTensors& term,
                      const Presence& presence,
                      double share) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < presence.size(); ++i) {
    if (presence[i] != 0 && share != 1) {
      at::Tensor(term.pieces()[i]).mul_(share);
    }
  }
  if (!memory_) {
    memory_ = term;
    presence_ = presence;
    return;
  }
  for (size_t i = 0; i < presence.size(); ++i) {
    auto sum = memory_->pieces()[i];
    if (presence[i] != 0) {
      presence_[i] != 0 ? sum.add_(term.pieces()[i])
                        : sum.copy_(term.pieces()[i]);
      presence_[i] = 1;
    }
  }
}

std::vector<at::Tensor> GradientSum::gradients() const {
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < presence_.size(); ++i) {
    gradients.push_back(presence_[i] != 0 ? memory_->pieces()[i]
                                          : at::Tensor());
  }
  return gradients;
}

FlatTensors GradientSum::clear() {
  FlatTensors memory = *std::exchange(memory_, std::nullopt);
  return memory;
}

}  // namespace dp::detail
