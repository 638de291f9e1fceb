#include "ddp/job/gather_rows.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "ddp/job/detail/rows_spec.h"
#include "ddp/job/peers.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"

namespace ddp::detail {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Device of the result. It is also the device of the transfer if the backend
/// supports it.
c10::Device target_of(const c10d::Backend& group, const at::Tensor& mine) {
  return mine.defined() ? mine.device() : device_for(group, c10::kCPU);
}

RowsSpec spec_of(const RowsToGather& rows) {
  auto spec = rows_spec(rows.mine);
  if (!rows.failure.empty()) {
    spec.failure = rows.failure;
  }
  return spec;
}

void check_specs(const std::vector<RowsSpec>& ranks, const std::string& what) {
  const auto error = gather_error(ranks);
  TORCH_CHECK(error.empty(), what, ": ", error);
}

std::vector<RowsSpec> agree(c10d::Backend& group,
                            c10::Device device,
                            const RowsToGather& rows) {
  std::vector<RowsSpec> ranks;
  const auto mine = to_text(spec_of(rows));
  for (const auto& text : all_gather_text(group, device, mine)) {
    ranks.push_back(rows_spec_of(text));
  }
  check_specs(ranks, rows.what);
  return without_gaps(std::move(ranks));
}

int64_t largest_of(const std::vector<RowsSpec>& ranks) {
  int64_t largest = 0;
  for (const auto& rank : ranks) {
    largest = std::max(largest, rank.bytes());
  }
  return largest;
}

/// Exchanges the bytes; the result is empty on a rank that receives nothing.
Tensors exchange(c10d::Backend& group,
                 const RowsToGather& rows,
                 const at::Tensor& mine) {
  Tensors inputs{mine};
  std::vector<Tensors> outputs;
  if (!rows.to || *rows.to == group.getRank()) {
    outputs.emplace_back();
    for (int rank = 0; rank < group.getSize(); ++rank) {
      outputs[0].push_back(at::empty_like(mine));
    }
  }
  if (mine.numel() > 0) {
    c10d::GatherOptions options;
    options.rootRank = rows.to.value_or(0);
    wait(rows.to ? group.gather(outputs, inputs, options)
                 : group.allgather(outputs, inputs),
         group,
         rows.what);
  }
  return outputs.empty() ? Tensors{} : outputs[0];
}

}  // namespace

Tensors gather_rows(const c10::intrusive_ptr<c10d::Backend>& group,
                    const RowsToGather& rows) {
  const c10::NoGradGuard no_grad;
  if (!group) {
    check_specs({spec_of(rows)}, rows.what);
    return {rows.mine.defined() ? rows.mine.detach().clone() : at::Tensor()};
  }
  const auto target = target_of(*group, rows.mine);
  const auto device = device_for(*group, target);
  const auto ranks = agree(*group, device, rows);
  auto result =
      exchange(*group, rows, to_bytes(rows.mine, largest_of(ranks), device));
  for (size_t rank = 0; rank < result.size(); ++rank) {
    result[rank] = ranks[rank].has_tensor
                       ? copy_result(tensor_of(result[rank], ranks[rank]),
                                     target,
                                     *group,
                                     rows.what)
                       : at::Tensor();
  }
  return result;
}

at::Tensor broadcast_rows(const c10::intrusive_ptr<c10d::Backend>& group,
                          const at::Tensor& mine,
                          int from) {
  const c10::NoGradGuard no_grad;
  const bool sends = !group || group->getRank() == from;
  RowsToGather rows{"broadcast of rank " + std::to_string(from) + "'s tensor",
                    mine};
  if (sends && !mine.defined()) {
    rows.failure = "Expected a tensor to send, but got an undefined one";
  }
  if (!group) {
    return gather_rows(group, rows)[0];
  }
  const auto target = target_of(*group, mine);
  const auto device = device_for(*group, target);
  const auto spec = rows_spec_of(broadcast_text(
      *group, device, sends ? to_text(spec_of(rows)) : "", from));
  TORCH_CHECK(spec.failure.empty(), rows.what, ": ", spec.failure);
  Tensors wire{to_bytes(
      sends ? mine.detach().clone() : at::Tensor(), spec.bytes(), device)};
  if (spec.bytes() > 0) {
    c10d::BroadcastOptions options;
    options.rootRank = from;
    wait(group->broadcast(wire, options), *group, rows.what);
  }
  return copy_result(tensor_of(wire[0], spec), target, *group, rows.what);
}

}  // namespace ddp::detail
