#include "ddp/job/collectives.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/GradMode.h>

#include "ddp/job/gather_rows.h"
#include "ddp/job/peers.h"
#include "ddp/job/process_group.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"

namespace ddp {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;

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
  return detail::broadcast_rows(ranks, tensor, from);
}

std::vector<at::Tensor> all_gather(const at::Tensor& tensor,
                                   const Group& group) {
  return detail::gather_rows(detail::peers(group), {"all_gather", tensor});
}

std::vector<at::Tensor> gather(const at::Tensor& tensor,
                               int to,
                               const Group& group) {
  const auto ranks = detail::peers(group);
  check_rank(to, ranks, "gather");
  return detail::gather_rows(ranks, {"gather", tensor, "", to});
}

std::vector<std::string> all_gather_text(const std::string& mine,
                                         const Group& group) {
  const auto ranks = detail::peers(group);
  if (!ranks) {
    return {mine};
  }
  return detail::all_gather_text(
      *ranks, detail::device_for(*ranks, c10::kCPU), mine);
}

at::Generator seed_everything(uint64_t seed) {
  const uint64_t own = seed + static_cast<uint64_t>(rank());
  at::manual_seed(own);
  return at::detail::createCPUGenerator(own);
}

}  // namespace ddp
