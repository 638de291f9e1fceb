#include "ddp/wrap/fully_sharded_data_parallel.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>

#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "ddp/job/collectives.h"
#include "ddp/job/peers.h"
#include "ddp/job/state_sync.h"
#include "ddp/shard/construction_memory.h"
#include "ddp/shard/operator_watch.h"
#include "ddp/shard/shard_exchange.h"
#include "ddp/shard/sharded_units.h"
#include "ddp/wrap/detail/wrapped_module.h"

namespace ddp {
namespace {

constexpr const char* kName = "FullyShardedDataParallel";

/// Without init_sync: the parameters are copied when they are divided.
DistributedDataParallelOptions options_of(
    const FullyShardedDataParallelOptions& options) {
  const auto cap = options.unit_cap_mb();
  TORCH_CHECK(!cap || *cap > 0,
              "Expected unit_cap_mb to be positive, but got ",
              cap.value_or(0));
  return DistributedDataParallelOptions()
      .process_group(options.process_group())
      .init_sync(false)
      .find_unused_parameters(options.find_unused_parameters())
      .broadcast_buffers(options.broadcast_buffers())
      .buffer_hook(options.buffer_hook());
}

std::optional<c10::ScalarType> checked_dtype(
    const char* name, std::optional<c10::ScalarType> dtype) {
  TORCH_CHECK(!dtype || c10::isFloatingType(*dtype),
              "Expected ",
              name,
              " to be a floating-point dtype, but got ",
              dtype.value_or(c10::kFloat));
  return dtype;
}

/// Returns why a parameter cannot move to other memory, or "".
/// @param device  of the others.
std::string problem_of(const at::Tensor& tensor, c10::Device device) {
  if (tensor.device() != device) {
    return "is on " + tensor.device().str() + " and not on " + device.str();
  }
  if (tensor.layout() != c10::kStrided ||
      !tensor.is_non_overlapping_and_dense()) {
    return "is not dense in memory";
  }
  if (detail::watched_storage_of(tensor) != nullptr) {
    return "";  // see DistributedDataParallelBase::refuses_module
  }
  if (tensor.grad_dtype().value_or(tensor.scalar_type()) !=
      tensor.scalar_type()) {
    return "has gradients of another dtype (set_grad_dtype)";
  }
  if (tensor.storage().use_count() > 1) {
    return "shares its memory with another tensor, such as a view or the "
           "tensor that it is a view of; register a clone()";
  }
  return "";
}

}  // namespace

FullyShardedDataParallelBase::FullyShardedDataParallelBase(
    const FullyShardedDataParallelOptions& options)
    : DistributedDataParallelBase(options_of(options), kName),
      unit_cap_mb_(options.unit_cap_mb()),
      reshard_after_forward_(options.reshard_after_forward()),
      param_dtype_(checked_dtype("param_dtype", options.param_dtype())),
      reduce_dtype_(checked_dtype("reduce_dtype", options.reduce_dtype())) {
  TORCH_CHECK(!c10::InferenceMode::is_enabled(),
              "Expected a model to shard outside of an InferenceMode, because "
              "the leaves would not train, but got one inside; end the mode "
              "first");
  TORCH_CHECK(process_group() || !param_dtype_,
              "Expected several ranks for param_dtype, because a rank alone "
              "gathers nothing, but got one; use ddp::AutocastGuard");
}

void FullyShardedDataParallelBase::run_constructor(
    const std::function<void()>& construct,
    const FullyShardedDataParallelOptions& options) {
  const auto group = detail::known_peers(options.process_group(), kName);
  if (!group || group->getRank() == 0) {
    construct();
  } else {
    const detail::ConstructionMemory without_memory;
    construct();
  }
}

std::vector<std::string> FullyShardedDataParallelBase::compared_options(
    const c10::intrusive_ptr<c10d::Backend>& ranks,
    const std::shared_ptr<Exchange>& exchange) const {
  auto lines = DistributedDataParallelBase::compared_options(ranks, exchange);
  lines.push_back(c10::str("option unit_cap_mb is ", unit_cap_mb_.value_or(0)));
  lines.push_back(
      c10::str("option reshard_after_forward is ", reshard_after_forward_));
  const auto add = [&lines](const char* name, const auto& dtype) {
    lines.push_back(c10::str(
        "option ", name, " is ", dtype ? c10::toString(*dtype) : "unset"));
  };
  add("param_dtype", param_dtype_);
  add("reduce_dtype", reduce_dtype_);
  return lines;
}

std::string FullyShardedDataParallelBase::refuses_module(
    const detail::WrappedModule& found) const {
  auto tensors = detail::tensors_of(found.parameters);
  const auto buffers = detail::tensors_of(found.buffers);
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  const auto others = detail::ConstructionMemory::other_sizes(tensors);
  if (!others.empty()) {
    return c10::str(
        "Expected parameters and buffers alone as large tensors of "
        "a module that a function constructs for ",
        kName,
        ", because the others have no values on this rank, but got "
        "one of ",
        others.front(),
        " bytes; register it by register_buffer");
  }
  for (const auto& [name, tensor, sparse] : found.parameters) {
    const auto problem =
        sparse ? "has sparse gradients"
               : problem_of(tensor, found.parameters.front().tensor.device());
    if (!problem.empty()) {
      return c10::str(
          "Expected parameters on one device, each with dense gradients and "
          "dense memory of its own, because ",
          kName,
          " divides their memory between the ranks, but ",
          name,
          " ",
          problem);
    }
  }
  return DistributedDataParallelBase::refuses_module(found);
}

std::shared_ptr<Exchange> FullyShardedDataParallelBase::default_exchange(
    const detail::WrappedModule& found) {
  auto exchange = std::make_shared<detail::ShardExchange>(
      process_group(),
      found.parameters,
      unit_cap_mb_,
      !reshard_after_forward_,
      detail::ShardDtypes{param_dtype_, reduce_dtype_});
  units_ = exchange->units();
  const auto buffers = detail::tensors_of(found.buffers);
  detail::ConstructionMemory::give_memory(buffers);
  const auto device = units_->units().front()->slab().device();
  for (const auto& buffer : buffers) {
    if (buffer.device() != device) {
      buffer.set_data(buffer.to(device));
    }
  }
  detail::broadcast_from(0, *process_group(), buffers);
  return exchange;
}

std::string FullyShardedDataParallelBase::refuses_group(
    const c10::intrusive_ptr<c10d::Backend>& /*group*/,
    const std::shared_ptr<Exchange>& /*exchange*/) const {
  return "Expected a model without shards for update_process_group, but got a "
         "FullyShardedDataParallel, whose ranks share memory; save a "
         "ddp::Checkpoint and wrap a new module over the new group";
}

std::string FullyShardedDataParallelBase::refuses_join() const {
  return "is a FullyShardedDataParallel, each rank of which steps a part";
}

torch::Tensor FullyShardedDataParallelBase::to_param_dtype(
    const torch::Tensor& tensor) const {
  return tensor.defined() && tensor.is_floating_point()
             ? tensor.to(*param_dtype_)
             : tensor;
}

void FullyShardedDataParallelBase::begin_forward() {
  before_forward();
  if (units_) {
    units_->begin_reading();
  }
}

torch::OrderedDict<std::string, torch::Tensor>
FullyShardedDataParallelBase::named_shards() const {
  torch::OrderedDict<std::string, torch::Tensor> shards;
  for (const auto& [name, tensor, sparse] :
       detail::distinct_tensors(children().front()->named_parameters())) {
    const auto [unit, index] = detail::unit_place_of(tensor);
    shards.insert(name, unit == nullptr ? tensor : unit->leaves()[index]);
  }
  return shards;
}

std::vector<torch::Tensor> FullyShardedDataParallelBase::parameters() const {
  return named_shards().values();
}

double FullyShardedDataParallelBase::clip_grad_norm_(double max_norm,
                                                     double norm_type,
                                                     bool error_if_nonfinite) {
  TORCH_CHECK(
      norm_type > 0, "Expected a positive norm_type, but got ", norm_type);
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  for (const auto& leaf : parameters()) {
    if (leaf.grad().defined()) {
      grads.push_back(leaf.grad());
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard unwatched(detail::watch_operators());
  const bool is_max = std::isinf(norm_type);
  auto sum = at::zeros({}, at::kDouble);
  for (const auto& grad : grads) {
    const auto norm =
        grad.numel() == 0 ? at::zeros({}) : grad.norm(norm_type).to(at::kCPU);
    const auto wide = norm.to(at::kDouble);
    sum = is_max ? at::maximum(sum, wide) : sum + wide.pow(norm_type);
  }
  if (units_) {
    sum = reduce_tensor(
        sum, is_max ? Reduction::max : Reduction::sum, process_group());
  }
  const double norm =
      is_max ? sum.item<double>() : std::pow(sum.item<double>(), 1 / norm_type);
  TORCH_CHECK(!error_if_nonfinite || std::isfinite(norm),
              "Expected finite gradients, but their norm is ",
              norm,
              "; set error_if_nonfinite to false to scale them all the same");
  const double factor = max_norm / (norm + 1e-6);
  for (auto& grad : grads) {
    if (!(factor >= 1)) {
      grad.mul_(factor);
    }
  }
  return norm;
}

void FullyShardedDataParallelBase::zero_grad(bool set_to_none) {
  if (units_) {
    units_->clear_gradients();
    units_->forget_local();
  }
  DistributedDataParallelBase::zero_grad(set_to_none);
  for (auto& leaf : parameters()) {
    if (set_to_none) {
      leaf.mutable_grad().reset();
    } else if (leaf.grad().defined()) {
      leaf.grad().zero_();
    }
  }
}

WholeParameters::WholeParameters(const FullyShardedDataParallelBase& model)
    : units_(model.units()), exceptions_(std::uncaught_exceptions()) {
  if (units_) {
    units_->make_private();
  }
}

WholeParameters::~WholeParameters() {
  if (units_) {
    units_->end_private(std::uncaught_exceptions() == exceptions_);
  }
}

}  // namespace ddp
