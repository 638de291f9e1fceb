#include "ddp/optim/detail/pieces.h"

#include <algorithm>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/base/partition_whole.h"
#include "ddp/optim/detail/partition_evenly.h"
#include "ddp/tensors/alias_without_view.h"

namespace ddp::detail {
namespace {

ParameterShard cut_piece(const at::Tensor& param,
                         size_t index,
                         const Run& run) {
  auto part = flat_range(param.variable_data(), run.first, run.numel);
  torch::autograd::impl::set_version_counter(
      part, torch::autograd::impl::version_counter(param));
  return {param, index, run.first, run.rank, std::move(part)};
}

bool lies_in_place(const ParameterShard& piece) {
  return piece.part.is_alias_of(piece.param) &&
         piece.part.storage_offset() ==
             piece.param.storage_offset() + piece.first;
}

}  // namespace

bool is_whole(const ParameterShard& piece) {
  return piece.part.is_same(piece.param);
}

std::vector<ParameterShard> whole_pieces(const std::vector<at::Tensor>& params,
                                         std::vector<int64_t>& elements) {
  std::vector<int64_t> sizes;
  for (const auto& param : params) {
    sizes.push_back(param.numel());
  }
  const auto owners = partition_whole(sizes, elements);
  std::vector<ParameterShard> pieces;
  for (size_t i = 0; i < params.size(); ++i) {
    pieces.push_back({params[i], i, 0, owners[i], params[i]});
  }
  return pieces;
}

std::vector<ParameterShard> even_pieces(const std::vector<at::Tensor>& params,
                                        std::vector<int64_t>& elements) {
  struct DtypeBucket {
    c10::ScalarType dtype;
    std::vector<size_t> params;
    std::vector<int64_t> sizes;
  };
  std::vector<DtypeBucket> buckets;
  for (size_t i = 0; i < params.size(); ++i) {
    TORCH_CHECK(params[i].is_non_overlapping_and_dense(),
                "Expected parameters without gaps in their memory to cut by "
                "bucket, but one of shape ",
                params[i].sizes(),
                " has strides ",
                params[i].strides(),
                "; split the state by ZeroPartition::parameter");
    const auto dtype = params[i].scalar_type();
    auto found =
        std::find_if(buckets.begin(), buckets.end(), [&](const auto& bucket) {
          return bucket.dtype == dtype;
        });
    if (found == buckets.end()) {
      found = buckets.insert(found, {dtype, {}, {}});
    }
    found->params.push_back(i);
    found->sizes.push_back(params[i].numel());
  }
  std::vector<ParameterShard> pieces;
  for (const auto& bucket : buckets) {
    for (const auto& run : partition_evenly(bucket.sizes, elements)) {
      const size_t index = bucket.params[run.tensor];
      pieces.push_back(cut_piece(params[index], index, run));
    }
  }
  return pieces;
}

std::vector<int> first_owners(const std::vector<ParameterShard>& pieces) {
  std::vector<int> owners;
  for (const auto& piece : pieces) {
    owners.resize(std::max(owners.size(), piece.index + 1));
    if (piece.first == 0) {
      owners[piece.index] = piece.owner;
    }
  }
  return owners;
}

at::Tensor flat_range(const at::Tensor& dense, int64_t first, int64_t numel) {
  return alias_without_view(
      dense, dense.storage_offset() + first, {numel}, {1});
}

at::Tensor in_layout_of(const at::Tensor& tensor, const at::Tensor& param) {
  const bool is_laid = (tensor.is_contiguous() && param.is_contiguous()) ||
                       tensor.strides().equals(param.strides());
  return is_laid ? tensor
                 : at::empty_like(param, tensor.options()).copy_(tensor);
}

void update_shards(const std::vector<std::vector<ParameterShard>>& groups) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const auto& piece : groups[g]) {
      if (is_whole(piece) || lies_in_place(piece)) {
        continue;
      }
      const at::Tensor& param = piece.param;
      const int64_t numel = piece.part.numel();
      TORCH_CHECK(param.scalar_type() == piece.part.scalar_type() &&
                      param.device() == piece.part.device() &&
                      param.is_non_overlapping_and_dense() &&
                      param.numel() >= piece.first + numel,
                  "Expected parameters as they were when the "
                  "ZeroRedundancyOptimizer was made, but parameter ",
                  piece.index,
                  " of group ",
                  g,
                  " has become ",
                  param.toString(),
                  " of shape ",
                  param.sizes(),
                  " on ",
                  param.device(),
                  "; make the optimizer of the module as it is trained");
      piece.part.set_(
          param.storage(), param.storage_offset() + piece.first, {numel}, {1});
    }
  }
}

void check_gradients(const std::vector<std::vector<ParameterShard>>& groups) {
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const auto& piece : groups[g]) {
      TORCH_CHECK(is_whole(piece) || !piece.param.grad().defined() ||
                      piece.param.grad().layout() == c10::kStrided,
                  "Expected dense gradients for a state that is split by "
                  "bucket, but parameter ",
                  piece.index,
                  " of group ",
                  g,
                  " has a sparse one; split it by ZeroPartition::parameter");
    }
  }
}

ShardGradients::ShardGradients(
    const std::vector<std::vector<ParameterShard>>& groups, int rank) {
  const c10::NoGradGuard no_grad;
  for (const auto& pieces : groups) {
    for (const auto& piece : pieces) {
      const at::Tensor& grad = piece.param.grad();
      if (piece.owner != rank || is_whole(piece) || !grad.defined()) {
        continue;
      }
      parts_.push_back(piece.part);
      parts_.back().mutable_grad() =
          flat_range(in_layout_of(grad.detach(), piece.param),
                     piece.first,
                     piece.part.numel());
    }
  }
}

ShardGradients::~ShardGradients() {
  for (auto& part : parts_) {
    part.mutable_grad().reset();
  }
}

}  // namespace ddp::detail
