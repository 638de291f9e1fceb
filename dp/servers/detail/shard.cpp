#include "dp/servers/detail/shard.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/strides.h>

namespace dp::detail {
namespace {

/// Size of a cache line in bytes. A multiple of every dtype's alignment.
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

ShardMessage::ShardMessage(const std::vector<at::Tensor>& like) {
  const auto numbers = static_cast<int64_t>(1 + like.size());
  int64_t size = aligned(numbers * static_cast<int64_t>(sizeof(double)));
  int64_t offset = size;
  for (const auto& tensor : like) {
    bytes_ += static_cast<int64_t>(tensor.nbytes());
    size += aligned(static_cast<int64_t>(tensor.nbytes()));
  }
  flat_ = at::zeros({size}, at::kByte);
  numbers_ = static_cast<double*>(flat_.data_ptr());
  for (const auto& tensor : like) {
    auto piece = at::empty({0}, tensor.scalar_type());
    piece.set_(flat_.storage(),
               offset / static_cast<int64_t>(tensor.element_size()),
               tensor.sizes(),
               c10::contiguous_strides(tensor.sizes()));
    tensors_.push_back(std::move(piece));
    offset += aligned(static_cast<int64_t>(tensor.nbytes()));
  }
}

void copy_all(const std::vector<at::Tensor>& from,
              const std::vector<at::Tensor>& to) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) {
    at::Tensor(to[i]).copy_(from[i]);
  }
}

void copy_gradients(const std::vector<at::Tensor>& parameters,
                    const ShardMessage& message) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto gradient = parameters[i].grad();
    message.is_present(i) = gradient.defined() ? 1 : 0;
    if (gradient.defined()) {
      at::Tensor(message.tensors()[i])
          .copy_(gradient.layout() == at::kStrided ? gradient
                                                   : gradient.to_dense());
    }
  }
}

void scale_gradients(const ShardMessage& term, double share) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; share != 1 && i < term.tensors().size(); ++i) {
    if (term.is_present(i) != 0) {
      at::Tensor(term.tensors()[i]).mul_(share);
    }
  }
}

void add_gradients(const ShardMessage& term, const ShardMessage& sum) {
  const c10::NoGradGuard no_grad;
  sum.loss() += term.loss();
  for (size_t i = 0; i < term.tensors().size(); ++i) {
    at::Tensor total = sum.tensors()[i];
    if (term.is_present(i) != 0) {
      sum.is_present(i) != 0 ? total.add_(term.tensors()[i])
                             : total.copy_(term.tensors()[i]);
      sum.is_present(i) = 1;
    }
  }
}

}  // namespace dp::detail
