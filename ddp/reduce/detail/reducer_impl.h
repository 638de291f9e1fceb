#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/exchanges/bucket_consumer.h"
#include "ddp/exchanges/exchange.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/named_parameter.h"
#include "ddp/reduce/detail/autograd_hooks.h"
#include "ddp/reduce/detail/gradient_buckets.h"
#include "ddp/reduce/detail/pass_mark.h"
#include "ddp/reduce/detail/unused_parameters.h"
#include "ddp/reduce/options.h"
#include "ddp/reduce/reducer.h"

namespace ddp::detail {

class PeerState;
class StopVote;

/// State that belongs to one group: the exchange, the buckets in its memory,
/// the plan. Replaced as a whole by `change_group`.
struct GroupReduction {
  GroupReduction(std::vector<NamedParameter> parameters,
                 c10::intrusive_ptr<c10d::Backend> group,
                 const DistributedDataParallelOptions& options);

  c10::intrusive_ptr<c10d::Backend> group;
  int number;  ///< of the reducer in its group
  std::unique_ptr<PassMarks> marks;
  ExchangeClaim exchange;
  BucketConsumer* consumer;  ///< the exchange, if it is one
  GradientBuckets buckets;
  std::shared_ptr<PeerState> peers;
  std::shared_ptr<StopVote> vote;  ///< of the job, or of this group alone
  std::optional<UsedMap> used_map;
  std::optional<StaticGraph> static_graph;
  bool is_recording;           ///< until the plan is agreed on
  int64_t passes = 0;          ///< reduced passes, the current one included
  std::vector<size_t> frozen;  ///< without a gradient in the current pass
  std::vector<size_t> never;   ///< that no rank uses in a static graph
};

/// A pass in a CUDA graph.
struct RecordedPass {
  std::shared_ptr<const void> hold;  ///< of the buckets' memory
  std::vector<CollectiveStart> collectives;
};

/// Implementation of `Reducer`; see there. States and events:
/// - idle. `before_forward`: claims the parameters. A gradient: opens a pass ->
///   collecting. `shadow_pass`: makes a pass of its own.
/// - collecting: a pass is open, and a graph task will report its end. A
///   gradient: goes into its bucket. The outermost task ends: the pass is
///   completed -> idle. A nested task ends on a thread that does not know the
///   task around it: completed -> idle if all gradients have come, else ->
///   detached.
/// - detached: a pass is open. A gradient: registers with its task, goes into
///   its bucket -> collecting.
/// - broken: an exception has left a pass, or a step of it has thrown. Every
///   call throws. `change_group`, from each state but a running pass -> idle.
///
/// In every state a gradient under a guard is recorded alone. A pass is left if
/// its graph task has ended without a report, because an exception has left it.
/// The next `before_forward`, gradient or `shadow_pass` announces that to the
/// other ranks and throws.
class ReducerImpl : public std::enable_shared_from_this<ReducerImpl> {
 public:
  ReducerImpl(std::vector<NamedParameter> parameters,
              c10::intrusive_ptr<c10d::Backend> group,
              const DistributedDataParallelOptions& options);
  ~ReducerImpl();
  ReducerImpl(const ReducerImpl&) = delete;
  ReducerImpl& operator=(const ReducerImpl&) = delete;

  void before_forward();
  void set_functions(PassFunctions functions);
  void shadow_pass(int ranks);
  void release();
  void change_group(c10::intrusive_ptr<c10d::Backend> group,
                    std::shared_ptr<Exchange> exchange);
  std::shared_ptr<const void> hold_memory();
  std::string refuses_recording();
  void begin_recording();
  std::shared_ptr<const RecordedPass> end_recording(const std::string& error);
  void replay(const RecordedPass& pass, const std::function<void()>& launch);
  bool is_in_pass();
  const BucketPlan& plan() const { return reduction_->buckets.plan(); }
  Pauses pauses;  ///< number of guards

 private:
  enum class State { idle, collecting, detached, broken };

  GradientBuckets& buckets() { return reduction_->buckets; }
  bool is_open() const {
    return state_ == State::collecting || state_ == State::detached;
  }
  bool was_left() const;
  void check_usable();
  void fail(const std::string& text) noexcept;
  template <typename Work>
  auto or_fail(const Work& work);

  void on_gradient(size_t index, bool is_untouched);
  void on_lost();
  void open(at::Device device);
  void expect_end();
  void begin(int ranks, std::optional<at::Device> device);
  void add(size_t index);
  void complete();
  std::vector<size_t> finish();
  void end_pass();

  void check_graph();
  void fill_known();
  void fill_expected();
  void agree_on_plan();
  void start_full_buckets();
  void finish_buckets(size_t end);
  void note_completed(std::shared_ptr<c10::Event> end);
  void write_mark();
  MarkSums read_marks();
  std::vector<size_t> agree();
  [[noreturn]] void refuse_difference();
  bool has_grad(size_t index) const {
    return reduction_->buckets.parameter(index).tensor.grad().defined();
  }
  std::vector<size_t> unused_here() const;
  std::string names_of(const std::vector<size_t>& indices) const;

  DistributedDataParallelOptions options_;  // without the exchange
  std::unique_ptr<GroupReduction> reduction_;
  PassFunctions functions_;

  std::mutex mutex_;
  State state_ = State::idle;
  std::string error_;          // of a broken state
  std::weak_ptr<void> end_;    // expires if no task will report the end
  int end_depth_ = 0;          // of that task
  int64_t registrations_ = 0;  // with tasks; the last one counts
  // Thread of the last forward; nullopt if a backward pass called the forward.
  std::optional<std::thread::id> forward_thread_;

  bool records_ = false;  // the current stream records the pass
  // Of a replay that has not completed when last seen, or null.
  std::shared_ptr<c10::Event> incomplete_;

  // The current pass.
  std::shared_ptr<const AveragedPass> averaged_pass_;
  bool is_shadow_ = false;
  std::vector<size_t> missing_;  // parameters that train, without a gradient
  std::vector<size_t> order_;    // of gradients, while recording
  size_t next_ = 0;              // bucket to start next
  size_t finished_ = 0;          // number of finished buckets
  c10::intrusive_ptr<c10d::Work> mark_work_;  // if no bucket carries the marks

  std::unique_ptr<GradHooks> hooks_;  // last: destroyed first
};

}  // namespace ddp::detail
