#include "ddp/job/collectives.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "ddp/base/text/rank_text.h"
#include "ddp/job/peers.h"
#include "ddp/job/process_group.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"

namespace ddp {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;
using Tensors = std::vector<at::Tensor>;

void check_rank(int rank, const Group& ranks, const char* what) {
  const int size = ranks ? ranks->getSize() : 1;
  TORCH_CHECK(0 <= rank && rank < size,
              "Expected the rank of ",
              what,
              " to lie in [0, ",
              size,
              "), but got ",
              rank);
}

c10d::ReduceOp operation(Reduction reduction) {
  switch (reduction) {
    case Reduction::min:
      return c10d::ReduceOp::MIN;
    case Reduction::max:
      return c10d::ReduceOp::MAX;
    default:
      return c10d::ReduceOp::SUM;
  }
}

bool gloo_combines(c10::ScalarType dtype, Reduction reduction) {
  switch (dtype) {
    case c10::kFloat:
    case c10::kDouble:
    case c10::kHalf:
    case c10::kBFloat16:
    case c10::kChar:
    case c10::kByte:
    case c10::kBool:
    case c10::kInt:
    case c10::kLong:
      return true;
    default:
      return c10::isComplexType(dtype) &&
             (reduction == Reduction::mean || reduction == Reduction::sum);
  }
}

constexpr const char* kUndefined = "an undefined tensor";

/// Describes this rank's tensor to the other ranks: the number of its dtype and
/// its sizes, or the reason why it is no dense tensor.
std::string header_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return kUndefined;
  }
  if (tensor.layout() != c10::kStrided || tensor.is_quantized() ||
      tensor.is_meta()) {
    return "a tensor that is not dense";
  }
  return c10::str(static_cast<int>(tensor.scalar_type()),
                  " ",
                  c10::Join(" ", tensor.sizes()));
}

/// Returns a meta tensor with the dtype and the sizes of the header, or an
/// undefined one if no dense tensor has this header.
at::Tensor outline_of(const std::string& header) {
  std::istringstream numbers(header);
  int dtype = 0;
  if (!(numbers >> dtype)) {
    return {};
  }
  std::vector<int64_t> sizes;
  for (int64_t size = 0; numbers >> size;) {
    sizes.push_back(size);
  }
  return at::empty(sizes,
                   at::TensorOptions(static_cast<c10::ScalarType>(dtype))
                       .device(c10::kMeta));
}

/// Returns the properties in which the ranks' tensors must agree.
std::string line_of(const at::Tensor& outline) {
  return c10::str(outline.scalar_type(),
                  outline.dim() == 0 ? " without dimensions"
                                     : c10::str(" in rows of shape ",
                                                outline.sizes().slice(1)));
}

/// Returns the outlines of the ranks' tensors. An undefined tensor becomes zero
/// rows of the other ranks' sizes, if their tensors have rows.
/// @throws c10::Error, the same on every rank, if they do not fit together.
Tensors outlines_of(const std::vector<std::string>& headers, const char* what) {
  Tensors outlines;
  std::vector<std::string> lines;
  std::string common = kUndefined;
  at::Tensor none;
  for (const auto& header : headers) {
    const auto outline = outlines.emplace_back(outline_of(header));
    lines.push_back(outline.defined() ? line_of(outline) : header);
    if (outline.defined()) {
      common = lines.back();
      none = outline.dim() > 0 ? outline.narrow(0, 0, 0) : at::Tensor();
    }
  }
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const bool is_none = lines[rank] == kUndefined && none.defined();
    TORCH_CHECK(lines[rank] == common || is_none,
                what,
                ": Expected dense tensors of one dtype and of the same sizes "
                "except for the first, but got ",
                detail::texts_by_rank(lines));
    if (is_none) {
      outlines[rank] = none;
    }
  }
  return outlines;
}

bool has_fewer_rows(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() > 0 && a.size(0) < b.size(0);
}

/// Returns the memory of a contiguous tensor. A transfer of bytes supports
/// every dtype; backends support only some.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

/// Returns the first rows of a padded tensor.
at::Tensor rows_of(const at::Tensor& padded, const at::Tensor& outline) {
  return outline.dim() == 0 ? padded : padded.narrow(0, 0, outline.size(0));
}

/// Returns the device of the result. It is also the device of the transfer if
/// the backend supports it.
c10::Device target_of(const c10d::Backend& group, const at::Tensor& mine) {
  return mine.defined() ? mine.device() : detail::device_for(group, c10::kCPU);
}

/// Gathers the tensors of all ranks on rank `to`, or on all ranks. Each rank
/// sends as many rows as the rank with the most rows.
Tensors gather_rows(const at::Tensor& mine,
                    const std::optional<int>& to,
                    const Group& ranks,
                    const char* what) {
  const c10::NoGradGuard no_grad;
  if (!ranks) {
    outlines_of({header_of(mine)}, what);
    return {mine.defined() ? mine.detach().clone() : mine};
  }
  const auto target = target_of(*ranks, mine);
  const auto device = detail::device_for(*ranks, target);
  const auto outlines =
      outlines_of(detail::all_gather_text(
                      *ranks, device, header_of(mine), "the tensors' shapes"),
                  what);
  const bool receives = !to || *to == ranks->getRank();
  Tensors result(receives ? outlines.size() : 0);
  if (!outlines.front().defined()) {
    return result;
  }
  const auto padded = at::zeros_like(
      *std::max_element(outlines.begin(), outlines.end(), has_fewer_rows),
      device);
  if (mine.defined()) {
    rows_of(padded, mine).copy_(mine);
  }
  Tensors input{bytes_of(padded)};
  std::vector<Tensors> output(receives ? 1 : 0);
  for (auto& each : result) {
    each = at::empty_like(padded);
    output[0].push_back(bytes_of(each));
  }
  if (padded.numel() > 0) {
    c10d::GatherOptions options;
    options.rootRank = to.value_or(0);
    detail::wait(to ? ranks->gather(output, input, options)
                    : ranks->allgather(output, input),
                 *ranks,
                 what);
  }
  for (size_t rank = 0; rank < result.size(); ++rank) {
    result[rank] = detail::copy_result(
        rows_of(result[rank], outlines[rank]), target, *ranks, what);
  }
  return result;
}

}  // namespace

void barrier(const Group& group) {
  const auto ranks = detail::peers(group);
  if (!ranks) {
    return;
  }
  c10d::BarrierOptions options;
  options.device = local_device();
  if (options.device->is_cuda()) {
    options.device_ids = {options.device->index()};  // NCCL uses only these
  }
  detail::wait(ranks->barrier(options), *ranks, "barrier");
}

at::Tensor reduce_tensor(const at::Tensor& tensor,
                         Reduction reduction,
                         const Group& group) {
  TORCH_CHECK(tensor.defined(),
              "Expected a tensor to reduce, but got an undefined one");
  TORCH_CHECK(reduction != Reduction::mean || tensor.is_floating_point() ||
                  tensor.is_complex(),
              "Expected floating point for Reduction::mean, but got ",
              tensor.scalar_type(),
              "; convert the tensor, or use Reduction::sum");
  TORCH_CHECK(reduction != Reduction::sum || tensor.scalar_type() != c10::kBool,
              "Expected numbers for Reduction::sum, but got Bool; convert the "
              "tensor, or use Reduction::max for \"any\", Reduction::min for "
              "\"all\"");
  c10::NoGradGuard no_grad;
  const auto ranks = detail::peers(group);
  if (!ranks) {
    return tensor.detach().clone();
  }
  TORCH_CHECK(ranks->getBackendName() != "gloo" ||
                  gloo_combines(tensor.scalar_type(), reduction),
              "Expected a dtype that Gloo can combine, but got ",
              tensor.scalar_type(),
              "; convert the tensor");
  const auto device = detail::device_for(*ranks, tensor.device());
  // The sum of a mean may exceed the range of half precision.
  const bool is_half_mean =
      reduction == Reduction::mean && tensor.scalar_type() == c10::kHalf;
  std::vector<at::Tensor> result{
      tensor.detach()
          .to(device,
              is_half_mean ? c10::kFloat : tensor.scalar_type(),
              false,
              /*copy=*/true)
          .contiguous()};
  c10d::AllreduceOptions options;
  options.reduceOp = operation(reduction);
  detail::wait(ranks->allreduce(result, options), *ranks, "reduce_tensor");
  if (reduction == Reduction::mean) {
    result[0].div_(ranks->getSize());
  }
  return detail::copy_result(result[0].to(tensor.scalar_type()),
                             tensor.device(),
                             *ranks,
                             "reduce_tensor");
}

at::Tensor broadcast(const at::Tensor& tensor, int from, const Group& group) {
  const auto ranks = detail::peers(group);
  check_rank(from, ranks, "broadcast");
  const c10::NoGradGuard no_grad;
  const bool sends = !ranks || ranks->getRank() == from;
  const auto target = ranks ? target_of(*ranks, tensor) : c10::kCPU;
  const auto device = ranks ? detail::device_for(*ranks, target) : target;
  auto header = sends ? header_of(tensor) : "";
  if (ranks) {
    header = detail::broadcast_text(
        *ranks, device, header, "the tensor's shape", from);
  }
  const auto what = c10::str("broadcast of rank ", from, "'s tensor");
  const auto outline = outline_of(header);
  TORCH_CHECK(outline.defined(),
              what,
              ": Expected a dense tensor to send, but got ",
              header);
  if (!ranks) {
    return tensor.detach().clone();
  }
  const auto result = at::empty_like(outline, device);
  if (sends) {
    result.copy_(tensor);
  }
  if (result.numel() > 0) {
    c10d::BroadcastOptions options;
    options.rootRank = from;
    Tensors wire{bytes_of(result)};
    detail::wait(ranks->broadcast(wire, options), *ranks, what);
  }
  return detail::copy_result(result, target, *ranks, what);
}

std::vector<at::Tensor> all_gather(const at::Tensor& tensor,
                                   const Group& group) {
  return gather_rows(tensor, std::nullopt, detail::peers(group), "all_gather");
}

std::vector<at::Tensor> gather(const at::Tensor& tensor,
                               int to,
                               const Group& group) {
  const auto ranks = detail::peers(group);
  check_rank(to, ranks, "gather");
  return gather_rows(tensor, to, ranks, "gather");
}

std::vector<std::string> all_gather_text(const std::string& mine,
                                         const Group& group) {
  const auto ranks = detail::peers(group);
  if (!ranks) {
    return {mine};
  }
  return detail::all_gather_text(
      *ranks, detail::device_for(*ranks, c10::kCPU), mine, "texts");
}

at::Generator seed_everything(uint64_t seed) {
  const uint64_t own = seed + static_cast<uint64_t>(rank());
  at::manual_seed(own);
  return at::detail::createCPUGenerator(own);
}

}  // namespace ddp
