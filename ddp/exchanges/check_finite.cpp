#include "ddp/exchanges/check_finite.h"

#include <cmath>
#include <limits>
#include <utility>

#include <ATen/Functions.h>

#include "ddp/base/text/rank_text.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/job/peers.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"
#include "ddp/tensors/streams.h"

namespace ddp {
namespace {

constexpr double kMaximumNorm = std::numeric_limits<double>::infinity();

}  // namespace

CheckFinite::CheckFinite(c10::intrusive_ptr<c10d::Backend> group)
    : CheckFinite(std::make_shared<AllReduce>(group), group) {}

CheckFinite::CheckFinite(std::shared_ptr<Exchange> inner,
                         c10::intrusive_ptr<c10d::Backend> group)
    : ForwardingExchange(std::move(inner)),
      group_(detail::required_group(std::move(group))) {}

/// Computes the largest absolute value of each gradient, which is NaN or inf if
/// an element is. The host reads it at the end of the pass.
void CheckFinite::start(const GradientBucket& bucket) {
  if (bucket.index == 0) {
    found_.assign(bucket.count, {});
  }
  auto& found = found_[bucket.index];
  std::vector<at::Tensor> gradients;
  auto name = bucket.parameters.begin();
  for (const auto& gradient : bucket.gradients()) {
    const auto values = gradient.is_sparse() ? gradient._values() : gradient;
    if (values.numel() > 0) {
      gradients.push_back(values);
      found.names.push_back(name->name);
    }
    ++name;
  }
  if (!gradients.empty()) {
    found.largest =
        at::stack(at::_foreach_norm(gradients, kMaximumNorm)).to(at::kDouble);
    found.stream = detail::current_stream(found.largest.device());
  }
  inner().start(bucket);
  if (bucket.is_last()) {
    any_ = {at::zeros(
        {1}, at::TensorOptions(at::kFloat).device(bucket.payload.device()))};
    for (const auto& each : found_) {
      if (each.largest.defined()) {
        detail::join_stream(*each.stream);
        any_[0].add_(
            each.largest.isfinite().logical_not().sum().to(any_[0].device()));
      }
    }
    work_ = group_->allreduce(any_);
  }
}

void CheckFinite::finish(const GradientBucket& bucket) {
  inner().finish(bucket);
  if (!bucket.is_last()) {
    return;
  }
  const char* what = "all-reduce of what is not finite";
  detail::wait(std::exchange(work_, nullptr), *group_, what);
  const auto any = detail::copy_result(any_[0], c10::kCPU, *group_, what);
  if (any.item<float>() == 0) {
    return;
  }
  TORCH_CHECK(
      false,
      "Expected finite gradients, but got",
      detail::names_by_rank(detail::all_gather_text(
          *group_,
          any_[0].device(),
          findings(),
          "the names of gradients that are not finite")),
      " look at the loss and the inputs there; with float16 use a GradScaler");
}

/// Returns this rank's bad gradients as text: "weight (NaN), bias (inf)".
std::string CheckFinite::findings() const {
  std::string text;
  for (const auto& [names, largest, stream] : found_) {
    const auto host = largest.defined() ? largest.cpu() : at::Tensor();
    for (size_t i = 0; i < names.size(); ++i) {
      const double value = host.const_data_ptr<double>()[i];
      if (!std::isfinite(value)) {
        text += (text.empty() ? "" : ", ") + names[i] +
                (std::isnan(value) ? " (NaN)" : " (inf)");
      }
    }
  }
  return text;
}

void CheckFinite::abandon() noexcept {
  work_.reset();
  ForwardingExchange::abandon();
}

}  // namespace ddp
