#include "ddp/exchanges/desync_guard.h"

#include <utility>

#include <ATen/Functions.h>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/job/peers.h"
#include "ddp/job/state_sync.h"
#include "ddp/job/text_collectives.h"
#include "ddp/tensors/streams.h"

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
std::vector<std::string> describe_bucket(const GradientBucket& bucket,
                                         bool with_values) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor, sparse] : bucket.parameters) {
    lines.push_back(detail::describe(
        sparse ? "sparse parameter" : "parameter", name, tensor));
    if (with_values) {
      lines.back() +=
          c10::str(", values with the digest ", sum_of_bits(tensor));
    }
  }
  if (!bucket.payload.is_sparse()) {
    const auto name = c10::str(bucket.index + 1, " of ", bucket.count);
    lines.push_back(detail::describe("bucket", name, bucket.payload));
  }
  return lines;
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
  if ((passes_ - 1) % options_.every() != 0) {
    inner().start(bucket);
    return;
  }
  held_.push_back(bucket);
  streams_.push_back(detail::current_stream(bucket.payload.device()));
}

void DesyncGuard::finish(const GradientBucket& bucket) {
  if (!held_.empty()) {
    compare_and_start();
  }
  inner().finish(bucket);
}

/// At the end of the pass, because a comparison waits for the other ranks.
void DesyncGuard::compare_and_start() {
  std::vector<std::string> lines;
  for (size_t i = 0; i < held_.size(); ++i) {
    detail::join_stream(streams_[i]);
    for (auto& line : describe_bucket(held_[i], options_.values())) {
      lines.push_back(std::move(line));
    }
  }
  streams_.clear();
  const auto held = std::exchange(held_, {});
  detail::verify_across_ranks(
      *group_,
      detail::device_for(*group_, held.front().payload.device()),
      lines,
      "parameters and buckets",
      "the ranks have parted: start again from a checkpoint");
  for (const auto& bucket : held) {
    inner().start(bucket);
  }
}

void DesyncGuard::abandon() noexcept {
  held_.clear();
  ForwardingExchange::abandon();
}

}  // namespace ddp
