#include "dp/detail/parameter_server/gradients.h"

#include <utility>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <c10/core/GradMode.h>

namespace dp::detail {
namespace {

bool has_rows(const at::Tensor& gradient) {
  return gradient.is_sparse() && gradient.sparse_dim() == 1;
}

void scale(const at::Tensor& gradient, double share) {
  auto values = gradient.is_sparse() ? gradient._values() : gradient;
  values.mul_(share);
}

/// Both are dense, or rows in ascending order.
at::Tensor sum_of(const at::Tensor& sum, const at::Tensor& term) {
  if (!sum.is_sparse()) {
    return at::Tensor(sum).add_(term);
  }
  // A dense term's memory is its worker's.
  return term.is_sparse() ? sum.add(term).coalesce() : term.clone().add_(sum);
}

}  // namespace

Packet pack_gradients(const std::vector<at::Tensor>& parameters,
                      const at::Tensor& memory,
                      const std::vector<bool>& kept) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  Contents contents;
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto gradient = parameters[i].grad();
    if (!kept.empty() && kept[i]) {
      contents.push_back(kKept);
    } else if (!gradient.defined()) {
      contents.push_back(kNone);
    } else if (has_rows(gradient)) {
      gradient = gradient.coalesce();
      contents.push_back(gradient._nnz());
    } else {
      gradient =
          gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
      contents.push_back(kWhole);
    }
    gradients.push_back(std::move(gradient));
  }
  Packet packet(parameters, std::move(contents), memory);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (const auto rows = packet.rows(i); rows.defined()) {
      rows.copy_(gradients[i]._indices()[0]);
      packet.values(i).copy_(gradients[i]._values());
    } else if (const auto values = packet.values(i); values.defined()) {
      values.copy_(gradients[i]);
    }
  }
  return packet;
}

std::vector<at::Tensor> gradients_in(
    const Packet& packet, const std::vector<at::Tensor>& parameters) {
  check_rows(packet.all_rows(), parameters);
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto rows = packet.rows(i);
    gradients.push_back(
        rows.defined() ? at::_sparse_coo_tensor_unsafe(
                             rows.unsqueeze(0),
                             packet.values(i),
                             parameters[i].sizes(),
                             packet.values(i).options().layout(at::kSparse),
                             /*is_coalesced=*/true)
                       : packet.values(i));
  }
  return gradients;
}

void GradientSum::add(std::vector<at::Tensor> gradients,
                      double share,
                      const at::Tensor& memory) {
  const c10::NoGradGuard no_grad;
  const bool is_first = sum_.empty();
  sum_.resize(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) {
      continue;
    }
    if (share != 1) {
      scale(gradients[i], share);
    }
    if (sum_[i].defined()) {
      sum_[i] = sum_of(sum_[i], gradients[i]);
    } else {
      sum_[i] = is_first ? gradients[i] : gradients[i].clone();
    }
  }
  if (is_first) {
    memory_ = memory;
  }
}

at::Tensor GradientSum::clear() {
  sum_.clear();
  return std::move(memory_);
}

}  // namespace dp::detail
