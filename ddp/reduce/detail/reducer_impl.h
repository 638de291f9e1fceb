#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/named_parameter.h"
#include "ddp/reduce/detail/grad_hooks.h"
#include "ddp/reduce/detail/reduction.h"
#include "ddp/reduce/detail/unsynced_training_warning.h"
#include "ddp/reduce/options.h"

namespace ddp::detail {

struct AveragedPass;
class PeerState;

/// Implementation of `Reducer`; see there. Decides when a backward pass is
/// reduced; `Reduction` reduces it.
///
/// - idle: a gradient stays local and is recorded. `arm`, or the gradient of a
///   watched output -> armed.
/// - armed: the gradient of a parameter opens a pass. `disarm`, or the end of a
///   backward pass from a watched output that has opened no pass -> idle. After
///   a pass with create_graph the phase stays armed until the next `arm`.
/// - open: gradients are reduced. End of the pass -> idle.
///
/// In a pass `arm` and `disarm` do nothing.
///
/// Exceptions:
/// - One that leaves a pass before its end: the next `arm` completes the pass
///   with the other ranks, which get the failure, and throws as they do. The
///   destructor completes it, too, unless the exception is still on its way:
///   the rank is probably about to leave, and then tells the exception.
/// - One at the end of a pass (a bucket's `finish`, the action): it is thrown
///   after the rest of the pass; the next pass fails on all ranks.
/// - A second one, or one of a bucket's `start`: this rank leaves the job, and
///   the other ranks get the reason. From then on, and once ranks have
///   diverged, `arm` and passes throw.
class ReducerImpl : public std::enable_shared_from_this<ReducerImpl> {
 public:
  ReducerImpl(std::vector<NamedParameter> parameters,
              c10::intrusive_ptr<c10d::Backend> group,
              const DistributedDataParallelOptions& options);
  ~ReducerImpl();

  void arm();
  void disarm();
  void expect_local_passes();
  void watch(const at::Tensor& output);
  void on_pass(std::function<void()> action);
  void mean_over(std::function<int()> ranks);
  void shadow_pass(int ranks);
  void forget_steps();
  void release();
  void change_group(c10::intrusive_ptr<c10d::Backend> group,
                    std::shared_ptr<Exchange> exchange);
  bool is_in_pass();
  const BucketPlan& plan() const { return reduction_->plan(); }

 private:
  enum class Phase { idle, armed, open };

  bool is_open() const { return phase_ == Phase::open; }
  bool was_left() const;
  std::string left_error() const;
  void check_not_left() const;
  void end_left_pass();
  void check_sound();
  template <typename Work>
  auto or_abort(const Work& work);
  void attach_hooks();
  void claim_parameters();
  void on_output_grad();
  void register_on_end();
  void find_unreached();
  void begin();
  std::shared_ptr<const AveragedPass> begin_averaged_pass(int graph_task);
  void open();
  bool on_end(bool is_nested);
  void on_grad_ready(size_t index);
  void on_local_grad(size_t index);
  void close();
  void reset();

  c10::intrusive_ptr<c10d::Backend> group_;
  DistributedDataParallelOptions options_;  // without the exchange
  std::unique_ptr<Reduction> reduction_;
  std::mutex mutex_;
  Phase phase_ = Phase::idle;
  bool stays_armed_ = false;  // after a pass with create_graph
  std::weak_ptr<void> end_;   // expired unless a pass will call on_end
  int end_task_ = -1;         // graph task of that pass
  // Thread of the last forward; nullopt if a backward pass called the forward.
  std::optional<std::thread::id> forward_thread_;
  std::shared_ptr<const AveragedPass> averaged_pass_;
  bool has_output_ = false;        // that pass has reached a watched output
  std::vector<size_t> unreached_;  // by that pass, if it has
  std::function<void()> on_pass_;
  std::function<int()> mean_over_;
  UnsyncedTrainingWarning unsynced_warning_;
  std::string final_error_;  // "" unless no pass can follow
  std::shared_ptr<PeerState> peer_state_;
  // Shared with the hooks of outputs, which outlive this.
  std::shared_ptr<std::atomic<bool>> is_released_ =
      std::make_shared<std::atomic<bool>>(false);
  bool is_attached_ = false;          // since the last forward or pass
  std::unique_ptr<GradHooks> hooks_;  // last: destroyed first
};

}  // namespace ddp::detail
