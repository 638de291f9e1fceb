#include "ddp/nn/sync_batch_norm.h"

#include <sstream>
#include <utility>

#include <c10/util/StringUtil.h>

#include "ddp/job/join.h"
#include "ddp/job/peers.h"
#include "ddp/job/text_collectives.h"
#include "ddp/nn/detail/sync_batch_norm_function.h"
#include "ddp/tensors/replica_scope.h"

namespace ddp {

using torch::Tensor;

SyncBatchNormImpl::SyncBatchNormImpl(
    const torch::nn::BatchNormOptions& batch_norm_options, Group group)
    : BatchNormImplBase(batch_norm_options),
      group_(std::move(group)),
      is_given_(group_ != nullptr) {
  TORCH_CHECK(options.num_features() > 0,
              "Expected SyncBatchNorm to have at least one channel, but got ",
              options.num_features());
}

Tensor SyncBatchNormImpl::forward(const Tensor& input) {
  const auto group = is_training() ? ranks() : nullptr;
  if (!group || group->getSize() == 1) {
    return BatchNormImplBase::forward(input);
  }
  TORCH_CHECK(!Join::is_running(),
              "Expected a SyncBatchNorm in evaluation mode in a Join, because "
              "ranks without inputs make no forward, but it trains; call "
              "eval() on it, or set throw_on_early_termination");
  TORCH_CHECK(!detail::ReplicaScope::is_entered(),
              "Expected SyncBatchNorm outside of the replicas of a "
              "DataParallel of several devices in a world of ",
              group->getSize(),
              " ranks, since replicas would use the process group in no "
              "certain order, but got a forward in one; give each device a "
              "rank (DistributedDataParallel), or use torch::nn::BatchNorm");
  agree(*group, input);
  check_input(input);
  detail::RunningStatistics running;
  if (options.track_running_stats()) {
    running = {running_mean, running_var, next_factor()};
  }
  auto output = detail::sync_batch_norm(input,
                                        {group,
                                         weight,
                                         bias,
                                         running,
                                         options.eps(),
                                         options.num_features(),
                                         exchanged_});
  if (options.track_running_stats()) {
    num_batches_tracked += 1;
  }
  return output;
}

SyncBatchNormImpl::Group SyncBatchNormImpl::ranks() const {
  return group_ ? group_ : detail::known_peers(group_, "SyncBatchNorm");
}

void SyncBatchNormImpl::set_process_group(Group group) {
  group_ = std::move(group);
  is_given_ = group_ != nullptr;
  has_agreed_ = false;
}

void SyncBatchNormImpl::follow_process_group(const Group& group) {
  is_given_ = false;
  if (group_ != group) {
    group_ = group;
    has_agreed_ = false;
  }
}

/// Compares the layers once: the size of all later messages depends on them.
void SyncBatchNormImpl::agree(c10d::Backend& group, const Tensor& input) {
  if (has_agreed_) {
    return;
  }
  exchanged_ = detail::statistics_type(input.scalar_type());
  std::ostringstream mine;
  mine << options.num_features() << " channels and eps " << options.eps()
       << " for statistics in " << exchanged_;
  detail::verify_across_ranks(
      group,
      input.device(),
      {mine.str()},
      "SyncBatchNorm",
      "build the module alike and give it inputs of one type");
  has_agreed_ = true;
}

void SyncBatchNormImpl::check_input(const Tensor& input) const {
  const auto type = input.scalar_type();
  TORCH_CHECK(
      input.dim() >= 2 && input.size(1) == options.num_features() &&
          input.is_floating_point() &&
          detail::statistics_type(type) == exchanged_ &&
          (!weight.defined() || weight.device() == input.device()),
      "Expected inputs of one SyncBatchNorm to fit together, but got a ",
      type,
      " input of shape ",
      c10::Join(" x ", input.sizes()),
      " on ",
      input.device(),
      "; give every rank an input of ",
      options.num_features(),
      " channels in dimension 1, of one floating-point type");
}

/// Returns the weight of the batch in the running statistics, as in
/// torch::nn::BatchNorm.
double SyncBatchNormImpl::next_factor() const {
  return options.momentum() ? *options.momentum()
                            : 1.0 / (num_batches_tracked.item<double>() + 1);
}

void SyncBatchNormImpl::share(const Tensor& their_weight,
                              const Tensor& their_bias,
                              const Tensor& their_mean,
                              const Tensor& their_var,
                              const Tensor& their_count) {
  weight = parameters_["weight"] = their_weight;
  bias = parameters_["bias"] = their_bias;
  if (options.track_running_stats()) {
    running_mean.set_data(their_mean);
    running_var.set_data(their_var);
    num_batches_tracked.set_data(their_count);
  }
}

void SyncBatchNormImpl::_check_input_dim(const Tensor& input) {
  TORCH_CHECK(input.dim() >= 2,
              "Expected an input of two dimensions or more for SyncBatchNorm, "
              "but got ",
              input.dim());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "ddp::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ")";
}

}  // namespace ddp
