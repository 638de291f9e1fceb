#include "ddp/exchanges/desync_guard.h"

#include <functional>
#include <set>
#include <utility>

#include <ATen/Functions.h>

#include "ddp/base/text/rank_text.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/job/peers.h"
#include "ddp/job/state_sync.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"

namespace ddp {
namespace {

/// Digest of a tensor's bits: an integer sum, independent of the order of
/// addition.
int64_t sum_of_bits(const at::Tensor& tensor) {
  auto flat = tensor.detach().contiguous();
  if (flat.is_complex()) {
    flat = at::view_as_real(flat);
  }
  flat = flat.flatten();
  const auto word = flat.element_size() >= 4   ? at::kInt
                    : flat.element_size() == 2 ? at::kShort
                                               : at::kByte;
  return flat.view(word).sum(at::kLong).item<int64_t>();
}

/// Describes the parameters first and then the bucket: a difference in a
/// parameter also changes the bucket, and the first difference is reported.
std::vector<detail::TensorSpec> describe_bucket(const GradientBucket& bucket,
                                                bool with_values) {
  std::vector<detail::TensorSpec> specs;
  for (const auto& [name, tensor, sparse] : bucket.parameters) {
    auto spec = detail::describe(
        name, sparse ? "sparse parameter" : "parameter", tensor);
    if (with_values) {
      spec.values = "with the digest " + std::to_string(sum_of_bits(tensor));
    }
    specs.push_back(std::move(spec));
  }
  const auto name =
      std::to_string(bucket.index + 1) + " of " + std::to_string(bucket.count);
  if (!bucket.payload.is_sparse()) {
    specs.push_back(detail::describe(name, "bucket", bucket.payload));
  }
  return specs;
}

std::vector<std::vector<int64_t>> gather_numbers(
    c10d::Backend& group,
    c10::Device device,
    const std::vector<int64_t>& mine) {
  auto input = at::tensor(mine, at::kLong).to(device);
  auto output = at::empty({group.getSize() * input.numel()}, input.options());
  const char* what = "all-gather of what the ranks are about to combine";
  detail::wait(group._allgather_base(output, input), group, what);
  const auto host = detail::copy_result(output, c10::kCPU, group, what);
  const auto* number = host.const_data_ptr<int64_t>();
  std::vector<std::vector<int64_t>> result;
  for (int rank = 0; rank < group.getSize(); ++rank) {
    result.emplace_back(number, number + mine.size());
    number += mine.size();
  }
  return result;
}

std::string collectives_by_rank(const std::vector<std::vector<int64_t>>& all) {
  std::vector<std::string> texts;
  texts.reserve(all.size());
  for (const auto& numbers : all) {
    texts.push_back(std::to_string(numbers.back()));
  }
  return detail::names_by_rank(texts);
}

}  // namespace

DesyncGuard::DesyncGuard(c10::intrusive_ptr<c10d::Backend> group,
                         const DesyncGuardOptions& options)
    : DesyncGuard(std::make_shared<AllReduce>(group), group, options) {}

DesyncGuard::DesyncGuard(std::shared_ptr<Exchange> inner,
                         c10::intrusive_ptr<c10d::Backend> group,
                         const DesyncGuardOptions& options)
    : ForwardingExchange(std::move(inner)),
      group_(detail::required_group(std::move(group))),
      options_(options) {
  TORCH_CHECK(options.every() > 0,
              "Expected DesyncGuardOptions::every to be positive, but got ",
              options.every());
}

void DesyncGuard::start(const GradientBucket& bucket) {
  if (bucket.index == 0) {
    ++passes_;
  }
  if ((passes_ - 1) % options_.every() == 0) {
    compare(bucket);
  }
  inner().start(bucket);
}

void DesyncGuard::compare(const GradientBucket& bucket) const {
  auto& channel = options_.channel() ? *options_.channel() : *group_;
  const auto device = detail::device_for(channel, bucket.payload.device());
  const auto mine =
      detail::specs_to_text(describe_bucket(bucket, options_.values()));
  const auto hash = static_cast<int64_t>(std::hash<std::string>()(mine));
  const auto started =
      options_.channel()
          ? static_cast<int64_t>(group_->getSequenceNumberForGroup())
          : 0;
  const auto all = gather_numbers(channel, device, {hash, started});
  if (std::set<std::vector<int64_t>>(all.begin(), all.end()).size() == 1) {
    return;
  }
  std::vector<std::vector<detail::TensorSpec>> ranks;
  for (const auto& text : detail::all_gather_text(channel, device, mine)) {
    ranks.push_back(detail::specs_from_text(text));
  }
  const auto mismatch = detail::majority_mismatch(ranks);
  TORCH_CHECK(mismatch.empty(),
              "Expected all ranks to combine the same gradients, but ",
              mismatch,
              ". The ranks have parted: start again from a checkpoint");
  TORCH_CHECK(false,
              "Expected all ranks to have started as many collectives before "
              "the gradient of ",
              bucket.parameters.front().name,
              ", but got",
              collectives_by_rank(all),
              " call collectives of your own on all ranks alike");
}

}  // namespace ddp
