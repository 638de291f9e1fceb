#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ddp/job/detail/forwarding_backend.h"
#include "ddp/job/detail/peer_state.h"

namespace ddp::detail {

/// The name of the group of all ranks.
inline constexpr const char* kWorldGroup = "world";

/// The ranks of a group of the job.
struct GroupMembers {
  std::string name;        ///< one word, the same on all members
  std::vector<int> ranks;  ///< world rank of each group rank
};

/// A backward pass whose gradients a reducer averages over a group.
struct AveragedPass {
  /// Thread of the forward; std::nullopt if the forward ran in a backward pass.
  std::optional<std::thread::id> thread;
  int graph_task = -1;  ///< autograd's id; -1 for a pass without gradients
};

/// A group of the job: a backend that knows which ranks have left. It counts
/// the collectives that this rank starts. A collective that a departed rank
/// will never join throws at once. With a bound device (`setBoundDeviceId`),
/// tensors on a device that was not connected are refused, because NCCL would
/// wait for ranks without limit.
///
/// A model may keep the group longer than the job exists: `close` releases the
/// inner backend with its connections and its store.
///
/// Thread contract: as for any backend; `abort` may be called from any thread.
class MonitoredBackend : public ForwardingBackend {
 public:
  /// @param timeout  time-out of the backend's collectives.
  /// @param connect_timeout  time limit of `connect`.
  MonitoredBackend(
      c10::intrusive_ptr<c10d::Backend> backend,
      GroupMembers members,
      std::chrono::milliseconds timeout,
      std::shared_ptr<PeerState> record,
      std::chrono::milliseconds connect_timeout = std::chrono::minutes(5));

  const GroupMembers& members() const { return members_; }
  const std::shared_ptr<PeerState>& record() const { return record_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// Number of collectives that this rank has started.
  uint64_t started() const { return started_; }

  /// Returns the number of a new reducer over this group, counted from 0.
  int number_reducer() noexcept { return reducers_++; }

  /// Registers a reduced backward pass. The pass ends when the returned object
  /// is destroyed. Several models may share a backward pass of one thread.
  /// @throws c10::Error if a pass of another thread has not ended: the buckets
  ///   of two passes would be paired across ranks in a random order.
  std::shared_ptr<const AveragedPass> begin_pass(const AveragedPass& pass);

  /// Returns a departed member without which the last started collective cannot
  /// complete, or std::nullopt.
  std::optional<Departure> departed_member() const;

  /// Returns a departed member that had started more collectives than this
  /// rank, or std::nullopt.
  std::optional<Departure> behind() const;

  /// Returns true if a member has left in any way other than by a call; its
  /// part of the last collectives may be missing.
  bool has_failed_member() const;

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
  /// Returns true if a started collective may not have completed.
  bool may_be_working();
  /// Returns true if LibTorch has aborted the open group after an error that
  /// NCCL found. Always false over Gloo.
  bool has_failed() const;
  /// Returns one line: `what` failed because the group was aborted, and why.
  std::string failure(const std::string& what) const;
  /// @throws c10::Error with the line of `failure` if the group was aborted, by
  ///   this program or by LibTorch.
  void check_whole(const std::string& what) const;

  /// Returns one line: `what` failed because of the departure.
  std::string error_of(const std::string& what,
                       const Departure& departure) const;
  /// Throws the line of `error_of` and records that the program has seen the
  /// error.
  /// @throws c10::Error always.
  [[noreturn]] void fail(const std::string& what,
                         const Departure& departure) const;

  /// Waits until queued GPU work has completed or the group was aborted.
  void wait_until_idle();

  /// Counts a collective of this group that the backend does not execute.
  /// @throws c10::Error as a collective does.
  void count_collective(c10::Device device) { for_collective(device); }
  /// Calls `action`, which does not throw, when this group is aborted or
  /// closed, for waits outside of the backend. Destroy the result to prevent
  /// the call.
  std::shared_ptr<const void> at_end(std::function<void()> action);

  enum class End { finish, abort };
  /// Completes the started work (waits for it, or aborts it) and releases the
  /// backend. Never throws.
  void close(End end) noexcept;

  const std::string getBackendName() const override { return name_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  /// Ends blocked collectives; further collectives throw. Waits at most one
  /// second, because NCCL's abort may take as long as a collective.
  void abort() override;
  /// Closes this group before the job is left. Collective.
  void shutdown() override;
  /// For NCCL, uses the bound device if the options name none.
  Work barrier(const c10d::BarrierOptions& options) override;

 protected:
  c10d::Backend& for_collective(
      const std::optional<c10::Device>& device) override;
  void not_started() override;
  c10d::Backend& for_message() override;

 private:
  enum class State { open, aborted, closed };

  std::optional<Departure> missing_for(uint64_t number) const;
  void call_end_actions();
  /// Returns null unless the group is open.
  c10::intrusive_ptr<c10d::Backend> open_backend() const;

  const GroupMembers members_;
  const std::string name_;
  const std::shared_ptr<PeerState> record_;
  const std::chrono::milliseconds connect_timeout_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<uint64_t> started_{0};
  std::atomic<int> reducers_{0};  // reducers made over this group
  std::atomic<State> state_{State::open};
  mutable std::mutex connected_mutex_;
  std::vector<c10::Device> connected_;  // besides the bound device
  mutable std::mutex mutex_;            // guards the end of the backend
  std::mutex pass_mutex_;
  std::weak_ptr<const AveragedPass> pass_;  // the first of the running passes
  std::mutex actions_mutex_;
  std::vector<std::weak_ptr<const std::function<void()>>> end_actions_;
};

/// Returns `group` as a group of the job, or the group of the job that it
/// forwards to; null for any other group.
const MonitoredBackend* monitored_backend_of(const c10d::Backend& group);
MonitoredBackend* monitored_backend_of(c10d::Backend& group);

/// Closes `group` because this rank cannot do the work that other ranks wait
/// for, and reports to them that this rank has left the job, with the reason.
/// Over Gloo the closed connections end their wait. Does nothing if `group` is
/// not a group of the job, is no longer open, or if a failed rank was reported
/// already.
void abort_and_announce(c10d::Backend& group, const std::string& why);

}  // namespace ddp::detail
