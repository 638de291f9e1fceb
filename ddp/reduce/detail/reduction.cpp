#include "ddp/reduce/detail/reduction.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "ddp/exchanges/all_reduce.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/peers.h"
#include "ddp/job/wait.h"

namespace ddp::detail {
namespace {

/// @throws c10::Error if the exchange refuses sparse gradients and a parameter
///   has one.
std::vector<NamedParameter> checked_parameters(
    std::vector<NamedParameter> parameters, const Exchange& exchange) {
  const auto refusal = exchange.refuses_sparse();
  for (const auto& [name, tensor, sparse] : parameters) {
    TORCH_CHECK(
        !sparse || refusal.empty(),
        refusal,
        ", but got the sparse parameter ",
        name,
        "; make its layer with sparse(false), or use AllReduce over Gloo");
  }
  return parameters;
}

BucketCaps bucket_caps_of(const DistributedDataParallelOptions& options,
                          const c10d::Backend& group) {
  const auto to_bytes = [](double mebibytes) {
    return static_cast<int64_t>(mebibytes * 1024 * 1024);
  };
  const auto& cap = options.bucket_cap_mb();
  TORCH_CHECK(
      cap.value_or(1) > 0 && options.first_bucket_cap_mb() > 0,
      "Expected bucket_cap_mb and first_bucket_cap_mb to be positive, but got ",
      cap ? c10::str(*cap) : "none",
      " and ",
      options.first_bucket_cap_mb());
  BucketCaps caps;
  for (const double mebibytes : options.bucket_cap_mb_list()) {
    TORCH_CHECK(mebibytes > 0,
                "Expected the sizes in bucket_cap_mb_list to be positive, but "
                "got ",
                options.bucket_cap_mb_list());
    caps.push_back(to_bytes(mebibytes));
  }
  if (caps.empty()) {
    caps = {to_bytes(options.first_bucket_cap_mb()),
            cap ? to_bytes(*cap)
                : default_bucket_cap(group.getBackendName(), group.getSize())};
  }
  return caps;
}

/// @param exchange  lives as long as the buckets.
BucketLayout bucket_layout_of(Exchange& exchange, int ranks) {
  const int64_t multiple = exchange.multiple_of(ranks);
  TORCH_CHECK(multiple > 0,
              "Expected the exchange's multiple_of to be positive, but got ",
              multiple);
  const int among = exchange.min_group_size();
  const bool is_among_all = among == 0 || among >= ranks;
  return {multiple,
          StatusSums::kNumel,
          is_among_all && exchange.sums_every_element(),
          [&exchange](int64_t numel, const at::TensorOptions& options) {
            return exchange.allocate(numel, options);
          }};
}

UnusedMode unused_mode_of(const DistributedDataParallelOptions& options) {
  TORCH_CHECK(options.find_unused_parameters() +
                      options.find_unused_on_demand() +
                      options.static_graph() <=
                  1,
              "Expected find_unused_parameters, find_unused_on_demand or "
              "static_graph, but got several; the last where all passes leave "
              "out the same parameters, the first where most leave out some");
  if (options.static_graph()) {
    return UnusedMode::learn;
  }
  if (options.find_unused_parameters()) {
    return UnusedMode::find;
  }
  return options.find_unused_on_demand() ? UnusedMode::find_on_demand
                                         : UnusedMode::refuse;
}

/// Returns the status of a new reducer, with its number in a group of the job.
PassStatus new_status(c10d::Backend& group) {
  PassStatus status;
  if (auto* job = monitored_backend_of(group)) {
    status.reducer = job->number_reducer();
  }
  return status;
}

}  // namespace

Reduction::Reduction(std::vector<NamedParameter> parameters,
                     c10::intrusive_ptr<c10d::Backend> group,
                     const DistributedDataParallelOptions& options)
    : group_(required_group(std::move(group))),
      status_(new_status(*group_)),
      exchange_(options.exchange() ? options.exchange()
                                   : std::make_shared<AllReduce>(group_)),
      buckets_(checked_parameters(std::move(parameters), *exchange_),
               bucket_caps_of(options, *group_),
               bucket_layout_of(*exchange_, group_->getSize())),
      agreement_(group_, buckets_, unused_mode_of(options)),
      keeps_memory_(options.gradient_as_bucket_view()),
      is_recording_(!options.find_unused_parameters()),
      graph_(options.static_graph()
                 ? std::make_unique<GraphRecord>(buckets_.size())
                 : nullptr),
      unreached_(options.find_unused_parameters()
                     ? std::make_unique<Unreached>(buckets_.size())
                     : nullptr),
      steps_(replicated_parameters()) {}

std::vector<NamedParameter> Reduction::parameters() const {
  std::vector<NamedParameter> parameters;
  parameters.reserve(buckets_.size());
  for (size_t i = 0; i < buckets_.size(); ++i) {
    parameters.push_back(buckets_.parameter(i));
  }
  return parameters;
}

std::vector<at::Tensor> Reduction::replicated_parameters() const {
  std::vector<at::Tensor> tensors;
  if (exchange_->is_replica_consistent(group_->getSize())) {
    for (size_t i = 0; i < buckets_.size(); ++i) {
      tensors.push_back(parameter(i));
    }
  }
  return tensors;
}

void Reduction::copy_local_records(const Reduction& other) {
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (other.buckets_.has_local(i)) {
      record_local(i);
    }
  }
}

void Reduction::begin(int ranks) {
  open(ranks);
  status_.without_step = steps_.count_passes_without_step();
  fill_frozen();
  if (graph_ && graph_->is_known()) {
    fill_unused();
  }
}

void Reduction::begin_shadow(int ranks) {
  for (size_t i = 0; i < buckets_.size(); ++i) {
    parameter(i).mutable_grad().reset();
  }
  open(ranks);
  status_.is_shadow = true;
  fill_frozen();
}

void Reduction::open(int ranks) {
  buckets_.begin(keeps_memory_);
  buckets_.set_scale(exchange_->scale(ranks));
  ++status_.number;
}

void Reduction::add(size_t index) {
  if (!graph_ || graph_->add(index)) {
    add_to_bucket(index);
  }
}

void Reduction::add_to_bucket(size_t index) {
  if (unreached_ && comes_too_late(index)) {
    return;
  }
  const bool is_full =
      buckets_.add(index) || (unreached_ && unreached_->is_known());
  if (is_recording_) {
    order_.push_back(index);
  } else if (is_full) {
    // Whether a static graph has changed is known at the end of the pass, and
    // the status travels with the last bucket.
    start_full_buckets(buckets_.bucket_count() - (graph_ ? 1 : 0));
  }
}

void Reduction::skip_unreached(const std::vector<size_t>& unreached) {
  unreached_->begin(unreached, buckets_.expected(), buckets_.plan());
}

/// Whether the bucket of a gradient may have started without it.
bool Reduction::comes_too_late(size_t index) {
  unreached_->add(index);
  if (!buckets_.is_filled(index) || !parameter(index).requires_grad()) {
    return false;
  }
  status_.add_late(buckets_.parameter(index).name);
  return true;
}

PassOutcome Reduction::end(const std::function<void()>& action) {
  if (graph_ && !status_.is_shadow) {
    if (graph_->is_known()) {
      compare_graph();
    } else {
      learn_graph();
    }
  }
  fill_all_missing();
  if (is_recording_) {
    agree_on_plan();
  }
  start_full_buckets(buckets_.bucket_count());
  return finish(action);
}

/// If this rank had no inputs in the first pass of the others, it may use a
/// parameter that they left out of the plan: an error.
void Reduction::learn_graph() {
  for (const size_t index : graph_->learn()) {
    if (buckets_.has_bucket(index)) {
      add_to_bucket(index);
    } else {
      status_.add_changed(buckets_.parameter(index).name +
                          " (not at all on the ranks that began)");
    }
  }
}

/// Reports changes against the first pass. An unused parameter keeps its
/// `.grad`, so it must not have a gradient of a local pass either.
void Reduction::compare_graph() {
  for (const auto& [index, expected, came] : graph_->changes()) {
    if (parameter(index).requires_grad()) {
      status_.add_changed(c10::str(buckets_.parameter(index).name,
                                   " (",
                                   came,
                                   " times instead of ",
                                   expected,
                                   ")"));
    }
  }
  for (const size_t index : graph_->unused()) {
    if (buckets_.has_local(index)) {
      status_.add_changed(buckets_.parameter(index).name +
                          " (in a pass that was not reduced)");
    }
  }
}

/// Parameters that were frozen in the previous pass are filled at the
/// beginning, so that their buckets start as early as others.
void Reduction::fill_frozen() {
  auto& frozen = status_.frozen;
  const auto trains = [this](size_t index) {
    return parameter(index).requires_grad();
  };
  frozen.erase(std::remove_if(frozen.begin(), frozen.end(), trains),
               frozen.end());
  for (const size_t index : frozen) {
    buckets_.fill_missing(index);
  }
}

/// Parameters without a gradient in the first pass of a static graph; some may
/// have been frozen since.
void Reduction::fill_unused() {
  for (const size_t index : graph_->unused()) {
    if (buckets_.expects(index)) {
      if (!parameter(index).requires_grad()) {
        status_.frozen.push_back(index);
      }
      buckets_.fill_missing(index);
    }
  }
}

void Reduction::fill_missing(size_t index) {
  const bool trains = parameter(index).requires_grad();
  (trains ? status_.missing : status_.frozen).push_back(index);
  buckets_.fill_missing(index);
}

/// Fills every bucket, so that no other rank waits for this one.
void Reduction::fill_all_missing() {
  if (next_ == buckets_.bucket_count() && !unreached_) {
    return;
  }
  for (const size_t index : buckets_.expected()) {
    fill_missing(index);
  }
  std::sort(status_.missing.begin(), status_.missing.end());
  std::sort(status_.frozen.begin(), status_.frozen.end());
  if (is_recording_) {
    for (const auto* filled : {&status_.missing, &status_.frozen}) {
      order_.insert(order_.end(), filled->begin(), filled->end());
    }
  }
}

/// Fills a bucket that only waits for unreached parameters. Returns whether it
/// did.
bool Reduction::fill_unreached(size_t bucket) {
  if (!unreached_ || buckets_.pending(bucket) != unreached_->left(bucket)) {
    return false;
  }
  for (const size_t index : buckets_.plan()[bucket]) {
    if (buckets_.expects(index)) {
      fill_missing(index);
    }
  }
  return true;
}

/// Rank 0 plans by the order in which its gradients came. All gradients are in
/// buckets by now and move to the new ones. Parameters that no rank ever uses
/// leave the plan.
void Reduction::agree_on_plan() {
  const auto unused = agreement_.learn_unused(status_);
  auto numbers = at::zeros(
      {static_cast<int64_t>(buckets_.size() - unused.size())}, at::kLong);
  if (group_->getRank() == 0) {
    const auto is_unused = [&unused](size_t index) {
      return std::binary_search(unused.begin(), unused.end(), index);
    };
    order_.erase(std::remove_if(order_.begin(), order_.end(), is_unused),
                 order_.end());
    const auto plan = to_numbers(buckets_.plan_for(order_));
    std::copy(plan.begin(), plan.end(), numbers.mutable_data_ptr<int64_t>());
  }
  std::vector<at::Tensor> shared{numbers.to(parameter(0).device())};
  const char* what = "broadcast of the bucket plan";
  wait(group_->broadcast(shared), *group_, what);
  numbers = copy_result(shared[0], c10::kCPU, *group_, what);
  buckets_.move_to(plan_of(
      {numbers.const_data_ptr<int64_t>(), static_cast<size_t>(numbers.numel())},
      buckets_.size()));
  is_recording_ = false;
}

/// Starts in plan order only, so that the collectives of all ranks match.
void Reduction::start_full_buckets(size_t end) {
  while (next_ < end && (buckets_.is_full(next_) || fill_unreached(next_))) {
    // Another stream may have filled a bucket that had to wait for its turn.
    buckets_.join_streams(next_);
    if (next_ + 1 == buckets_.bucket_count()) {
      agreement_.write_status(status_);
    }
    exchange_->start(buckets_.bucket(next_));
    ++next_;
    if (next_ == buckets_.bucket_count()) {
      agreement_.start();
    }
  }
}

/// Continues after one failure, which may be this rank's alone: the other ranks
/// wait for it in the remaining calls. A second failure means that they cannot
/// be reached.
PassOutcome Reduction::finish(const std::function<void()>& action) {
  std::exception_ptr exception;
  const auto attempt = [&exception](const auto& step) {
    try {
      step();
    } catch (...) {
      if (exception) {
        std::rethrow_exception(exception);
      }
      exception = std::current_exception();
    }
  };
  for (size_t i = 0; i < buckets_.bucket_count(); ++i) {
    attempt([&] { exchange_->finish(buckets_.bucket(i)); });
  }
  if (action) {
    attempt(action);
  }
  PassOutcome outcome;
  attempt([&] { outcome = agreement_.finish(status_); });
  outcome.exception = exception;
  return outcome;
}

void Reduction::assign_grads(std::vector<size_t> kept) {
  kept.insert(kept.end(), status_.frozen.begin(), status_.frozen.end());
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  buckets_.assign_grads_except(kept);
}

void Reduction::abandon() noexcept {
  exchange_->abandon();
  agreement_.abandon();
}

void Reduction::reset() {
  status_.reset();
  buckets_.reset();
  order_.clear();
  next_ = 0;
  if (graph_) {
    graph_->reset();
  }
  if (unreached_) {
    unreached_->reset();
  }
}

}  // namespace ddp::detail
