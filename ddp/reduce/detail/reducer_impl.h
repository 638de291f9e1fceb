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

/// What `Reducer` does; see there. Says when things happen in a backward pass;
/// what happens is `Reduction`'s.
///
/// - idle: a gradient stays local and is noted; `arm`, or the gradient of a
///   watched output -> armed.
/// - armed: the gradient of a parameter opens a pass. `disarm`, or the end of a
///   backward pass from a watched output that has opened none -> idle; but
///   after one that is to be differentiated armed until the next `arm`.
/// - open: gradients are reduced; the end of the pass -> idle.
///
/// In a pass `arm` and `disarm` do nothing.
///
/// Where an exception has left a pass before its end, the next `arm` makes the
/// rest of it with the other ranks, tells them, and throws as they do. What
/// fails at the end of a pass (a bucket's `finish`, the action) is thrown when
/// the rest has been done; the next pass tells them and fails on all. Where
/// more has failed (a `start`, two of these), the other ranks of the job hear
/// that this one has left; then, and where the ranks have parted, `arm` throws,
/// and so does the next pass.
class ReducerImpl : public std::enable_shared_from_this<ReducerImpl> {
 public:
  ReducerImpl(std::vector<NamedParameter> parameters,
              c10::intrusive_ptr<c10d::Backend> group,
              const DistributedDataParallelOptions& options);

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
  auto or_give_up(const Work& work);
  void hang_hooks();
  void own_all();
  void on_output_grad();
  void watch_end();
  void look_ahead();
  void begin();
  void begin_over_group(int graph_task);
  void open();
  bool on_end(bool is_nested);
  void on_grad_ready(size_t index);
  void note_local(size_t index);
  void close();
  void reset();

  c10::intrusive_ptr<c10d::Backend> group_;
  DistributedDataParallelOptions options_;  // but for the exchange
  std::unique_ptr<Reduction> reduction_;
  std::mutex mutex_;
  Phase phase_ = Phase::idle;
  bool stays_armed_ = false;  // a pass with create_graph has been here
  std::weak_ptr<void> end_;   // lives while a pass will call on_end
  int end_task_ = -1;         // the graph task whose end that is
  // Of the last forward; none where a backward pass has called it.
  std::optional<std::thread::id> forward_thread_;
  std::shared_ptr<const AveragedPass> averaged_pass_;
  bool has_output_ = false;  // the pass whose end that is has met a watched one
  std::vector<size_t> unreached_;  // by that pass, where it has met one
  std::function<void()> on_pass_;
  std::function<int()> mean_over_;
  UnsyncedTrainingWarning local_watch_;
  std::string broken_;  // why no pass can follow
  std::shared_ptr<PeerState> record_;
  // Shared with the hooks of outputs, which outlive this.
  std::shared_ptr<std::atomic<bool>> is_released_ =
      std::make_shared<std::atomic<bool>>(false);
  bool is_hung_ = false;              // since the last forward or pass
  std::unique_ptr<GradHooks> hooks_;  // last: goes first
};

}  // namespace ddp::detail
