#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ddp/job/detail/action_list.h"
#include "ddp/job/detail/peer_state.h"
#include "ddp/job/detail/wait_judge.h"

namespace ddp::detail {

/// The ranks of a group of the job.
struct GroupMembers {
  std::string name;        ///< the same on all members
  std::vector<int> ranks;  ///< world rank of each group rank
  std::string ranges = member_ranges(ranks);
};

/// A backward pass of a reducer, which averages its gradients over a group.
struct AveragedPass {
  /// Thread of the forward; std::nullopt if the forward ran in a backward pass.
  std::optional<std::thread::id> thread;
  int graph_task = -1;  ///< autograd's id; -1 for a pass without gradients
};

/// A wait of one thread for a collective of a group.
struct GroupWait {
  uint64_t number = 0;    ///< of the collective
  std::string call;       ///< "allreduce of 64 Float"
  std::string operation;  ///< "all-reduce of gradient bucket 1"
  std::chrono::steady_clock::time_point since;
  std::thread::id thread;
};

/// The collectives and waits of this rank in a group.
struct GroupActivity {
  uint64_t started = 0;  ///< number of the last collective started
  /// The last calls, up to `started`; empty if no thread waits.
  std::vector<std::string> calls;
  std::thread::id last_thread;  ///< has started it, or made the group
  std::vector<GroupWait> waits;
};

/// A started collective, with the properties that are equal on all ranks, for
/// errors that compare the ranks' calls.
struct CollectiveStart {
  /// Returns "broadcast from rank 0 of 64 Float".
  std::string text() const;
  size_t hash() const;

  const c10d::Work* work = nullptr;
  const char* name = "";
  int64_t number = -1;  ///< a part of the name: of a rank or exchange
  int64_t numel = 0;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

/// A group of the job: a backend that knows which ranks have left. It numbers
/// the collectives that this rank starts, and knows which of them a thread
/// waits for. A collective of a group that a rank has left throws at once. With
/// a bound device (`setBoundDeviceId`), tensors on a device that was not
/// connected are refused, because NCCL would wait for ranks without limit.
///
/// `allreduce_sparse`, `monitoredBarrier` and the calls for several tensors
/// (`allreduce_coalesced` and others) are not forwarded and throw c10::Error.
///
/// A model may keep the group longer than the job exists: `close` releases the
/// inner backend with its connections and its store.
///
/// Thread contract: as for any backend; `abort` may be called from any thread.
class MonitoredBackend : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  /// @param timeout  time-out of the backend's collectives.
  /// @param connect_timeout  time limit of `connect`.
  MonitoredBackend(
      c10::intrusive_ptr<c10d::Backend> backend,
      GroupMembers members,
      std::chrono::milliseconds timeout,
      std::shared_ptr<PeerState> record,
      std::chrono::milliseconds connect_timeout = std::chrono::minutes(5));

  const GroupMembers& members() const { return members_; }
  /// This rank's number in the job, for errors.
  int world_rank() const {
    return members_.ranks[static_cast<size_t>(getRank())];
  }
  const std::shared_ptr<PeerState>& record() const { return record_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// Number of collectives that this rank has started.
  uint64_t started() const { return started_; }

  /// Returns the number of a new reducer over this group, counted from 0.
  int number_reducer() noexcept { return reducers_++; }
  /// Returns the number of a new exchange over this group with sums of its own,
  /// counted from 1. All ranks make these exchanges in the same order.
  int number_exchange() noexcept { return ++exchanges_; }

  /// Registers a reduced backward pass. The pass ends when the returned object
  /// is destroyed. Several models may share a backward pass of one thread.
  /// @throws c10::Error if a pass of another thread has not ended: the buckets
  ///   of two passes would be paired across ranks in a random order.
  std::shared_ptr<const AveragedPass> begin_pass(const AveragedPass& pass);

  /// Returns true if a pass of `begin_pass` has not ended.
  bool has_open_pass();

  /// Returns the first member that has left the job or this group, or
  /// std::nullopt; waits for one, at most `timeout`.
  std::optional<Departure> departed_member(
      std::chrono::milliseconds timeout = {}) const;

  /// Records that this thread waits for a collective, until `end_wait`.
  /// @param work  of the collective; null: the last one that has started.
  void begin_wait(const c10d::Work* work, const std::string& operation);
  void end_wait();
  GroupActivity progress() const;

  /// Connects the GPU `device` of this rank with the other members' GPUs, in
  /// addition to the bound device, for a module on several GPUs. Collective:
  /// the devices of one call average with each other. Does nothing if the
  /// device is connected already, or over Gloo.
  /// @throws c10::Error if the ranks have not connected within
  ///   `connect_timeout`, or if a member has left.
  void connect(c10::Device device);
  /// Returns true if collectives accept tensors on this device.
  bool is_connected(c10::Device device) const;

  bool is_open() const { return state_ == State::open; }
  bool is_closed() const { return state_ == State::closed; }
  /// Returns true if a started collective may not have completed, or if a
  /// thread waits for one. Over NCCL this takes up to a second.
  bool may_be_working();
  /// Returns true if LibTorch has aborted the open group after an error that
  /// NCCL found. Always false over Gloo.
  bool has_failed() const;
  /// The error that `abort_because` got, or "".
  std::string abort_reason() const;
  /// Returns an error of one line: the operation failed because the group was
  /// aborted, and the reason.
  std::string failure(const std::string& operation) const;
  /// @throws c10::Error with the text of `failure` if the group was aborted, by
  ///   this program or by LibTorch.
  void check_not_aborted(const std::string& operation) const;

  /// Returns an error of one line: the operation failed because a member has
  /// left.
  std::string error_of(const std::string& operation,
                       const Departure& departure) const;
  /// Throws the error of `error_of` and records that the program has seen it.
  /// @throws c10::Error always.
  [[noreturn]] void fail(const std::string& operation,
                         const Departure& departure) const;

  /// Waits until queued GPU work has completed or the group was aborted.
  void wait_until_idle();

  /// Called before and after the start of a sum of this group that the backend
  /// does not execute.
  /// @param exchange  of `number_exchange`.
  /// @throws c10::Error as a collective does.
  void before_sum(c10::Device device) { for_collective(device); }
  void after_sum(int exchange, const at::Tensor& tensor, const Work& work) {
    has_started(start_of({kSum, tensor.device(), tensor, exchange}), work);
  }
  /// Calls `action`, which does not throw, when this group is aborted or
  /// closed, for waits outside of the backend. Destroy the result to prevent
  /// the call.
  std::shared_ptr<const void> at_end(std::function<void()> action) {
    return end_actions_.add(std::move(action));
  }

  /// From now until `end_recording` the collectives of this rank are recorded
  /// in a CUDA graph, and do not count as started.
  void begin_recording();
  std::vector<CollectiveStart> end_recording();
  /// Called before and after the launch of a graph with these collectives.
  /// @param end  an event behind the launch.
  /// @throws c10::Error as a collective does.
  void before_replay(const std::vector<CollectiveStart>& collectives);
  void after_replay(const std::vector<CollectiveStart>& collectives,
                    std::shared_ptr<c10::Event> end);

  enum class End { finish, abort };
  /// Completes the started work (waits for it, or aborts it) and releases the
  /// backend. Never throws.
  void close(End end) noexcept;

  const std::string getBackendName() const override { return name_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  /// Ends blocked collectives; further collectives throw. Waits at most one
  /// second, because NCCL's abort may take as long as a collective.
  void abort() override;
  /// As `abort`, with an error text for the waits that it ends; "" if a rank
  /// has left or the program has called `abort`.
  void abort_because(const std::string& why);
  /// Closes this group before the job is left. Collective.
  void shutdown() override;
  c10::intrusive_ptr<Options> getBackendOptions() override;

  bool supportsCoalescing() const override;
  void startCoalescing() override;
  Work endCoalescing() override;

  Work broadcast(Tensors& tensors,
                 const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(TensorLists& outputs,
                 Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output,
                       at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Work gather(TensorLists& outputs,
              Tensors& inputs,
              const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs,
               TensorLists& inputs,
               const c10d::ScatterOptions& options) override;
  Work reduce_scatter(Tensors& outputs,
                      TensorLists& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output,
                            at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output,
                     at::Tensor& input,
                     std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes,
                     const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs,
                Tensors& inputs,
                const c10d::AllToAllOptions& options) override;
  /// For NCCL, uses the bound device if the options name none.
  Work barrier(const c10d::BarrierOptions& options) override;

  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;

 private:
  enum class State { open, aborted, closed };

  /// A collective.
  struct Collective {
    const char* name;
    std::optional<c10::Device> device;
    at::TensorList sized = {};  ///< of the same sizes on all ranks
    int64_t number = -1;        ///< a part of the name: of a rank or exchange
  };
  static CollectiveStart start_of(const Collective& collective);
  static constexpr const char* kSum = "sum in shared memory by exchange";

  /// @throws c10::Error if the backend was released.
  c10d::Backend& inner() const;
  /// Returns the backend that executes the next collective.
  c10d::Backend& for_collective(const std::optional<c10::Device>& device);
  void has_started(CollectiveStart start, const Work& work);
  void check_departures(const char* operation) const;
  /// Waits for NCCL's queued works and the last replay.
  static void wait_for_device(c10d::Backend& backend,
                              const std::shared_ptr<c10::Event>& replay);
  std::shared_ptr<c10::Event> last_replay() const;
  template <class Call>
  Work start(const Collective& collective, const Call& call);
  template <class Call>
  Work start_message(const Call& call);
  std::string call_of(uint64_t number) const;
  /// Returns null unless the group is open.
  c10::intrusive_ptr<c10d::Backend> open_backend() const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  const GroupMembers members_;
  const std::string name_;
  const std::shared_ptr<PeerState> record_;
  const std::chrono::milliseconds connect_timeout_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<uint64_t> started_{0};
  std::atomic<int> reducers_{0};   // made over this group
  std::atomic<int> exchanges_{0};  // as above
  std::atomic<State> state_{State::open};
  mutable std::mutex connected_mutex_;
  std::vector<c10::Device> connected_;  // besides the bound device
  mutable std::mutex mutex_;            // guards the end of the backend
  std::string abort_reason_;            // guarded by mutex_
  mutable std::mutex activity_mutex_;   // guards the following
  /// The last starts, by number modulo the size; no model has as many buckets
  /// in progress.
  std::array<CollectiveStart, 4096> starts_;
  std::thread::id last_thread_ = std::this_thread::get_id();  // as above
  std::vector<GroupWait> waits_;
  uint64_t waited_ = 0;  // highest number of a wait that has ended
  bool records_ = false;
  std::vector<CollectiveStart> recorded_;
  std::shared_ptr<c10::Event> replay_;  // behind the last replay, or null
  std::mutex pass_mutex_;
  std::weak_ptr<const AveragedPass> pass_;  // the first of the running passes
  ActionList end_actions_;
};

/// Returns the limit, at most a year: the sum of the present time and the
/// longest duration would overflow.
inline std::chrono::milliseconds at_most_a_year(
    std::chrono::milliseconds limit) {
  return std::min<std::chrono::milliseconds>(limit,
                                             std::chrono::hours(24 * 365));
}

/// Returns `group` as a group of the job; null for any other group.
const MonitoredBackend* monitored_backend_of(const c10d::Backend& group);
MonitoredBackend* monitored_backend_of(c10d::Backend& group);

/// Closes `group` because this rank cannot do the work that other ranks wait
/// for, and reports to them that this rank has left the group, with the reason.
/// Over Gloo the closed connections end their wait. Does nothing if `group` is
/// not a group of the job, is no longer open, or if the departure of a member
/// was reported already.
void abort_and_announce(c10d::Backend& group, const std::string& why);

}  // namespace ddp::detail
