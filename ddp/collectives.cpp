#include "ddp/collectives.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/GradMode.h>

#include "ddp/detail/text_collectives.h"
#include "ddp/detail/wait.h"
#include "ddp/process_group.h"

namespace ddp {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;

Group or_world(const Group& group) {
  return group || !is_initialized() ? group : process_group();
}

/// NCCL takes no CPU tensors.
c10::Device device_for(const c10d::Backend& ranks, c10::Device otherwise) {
  return ranks.getBackendName() == "nccl" ? local_device() : otherwise;
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

}  // namespace

void barrier(const Group& group) {
  const auto ranks = or_world(group);
  if (!ranks || ranks->getSize() == 1) {
    return;
  }
  c10d::BarrierOptions options;
  options.device = local_device();
  if (options.device->is_cuda()) {
    options.device_ids = {options.device->index()};  // NCCL heeds only these
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
  c10::NoGradGuard no_grad;
  const auto ranks = or_world(group);
  if (!ranks || ranks->getSize() == 1) {
    return tensor.detach().clone();
  }
  const auto device = device_for(*ranks, tensor.device());
  std::vector<at::Tensor> result{
      tensor.detach()
          .to(device, tensor.scalar_type(), false, /*copy=*/true)
          .contiguous()};
  c10d::AllreduceOptions options;
  options.reduceOp = operation(reduction);
  detail::wait(ranks->allreduce(result, options), *ranks, "reduce_tensor");
  if (reduction == Reduction::mean) {
    result[0].div_(ranks->getSize());
  }
  return result[0].to(tensor.device());
}

std::vector<std::string> all_gather_text(const std::string& mine,
                                         const Group& group) {
  const auto ranks = or_world(group);
  if (!ranks || ranks->getSize() == 1) {
    return {mine};
  }
  return detail::all_gather_text(*ranks, device_for(*ranks, c10::kCPU), mine);
}

at::Generator seed_everything(uint64_t seed) {
  const uint64_t own = seed + static_cast<uint64_t>(rank());
  at::manual_seed(own);
  return at::detail::createCPUGenerator(own);
}

}  // namespace ddp
