#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
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

/// Which ranks of the job form a group.
struct GroupMembers {
  std::string name;        ///< one word, the same on all of them
  std::vector<int> ranks;  ///< of the world, by their rank in the group
};

/// A backward pass whose gradients a reducer averages over a group.
struct AveragedPass {
  /// The thread of the forward; none where a backward pass has called it.
  std::optional<std::thread::id> thread;
  int graph_task = -1;  ///< autograd's; -1 for a pass without gradients
};

/// A group of the job: a backend that knows who has left. It counts the
/// collectives that this rank starts, so it can tell which ones a rank that has
/// left will never join: those throw at once. With a bound device
/// (`setBoundDeviceId`), tensors of a device that was not connected are
/// refused: NCCL would wait for ranks that do not come.
///
/// A model may hold it longer than the job lives: `close` lets the backend go,
/// with its connections and its store.
///
/// Thread contract: that of a backend; `abort` comes from any thread.
class MonitoredBackend : public ForwardingBackend {
 public:
  /// @param timeout  of the backend.
  /// @param connect_timeout  of `connect`.
  MonitoredBackend(
      c10::intrusive_ptr<c10d::Backend> backend,
      GroupMembers members,
      std::chrono::milliseconds timeout,
      std::shared_ptr<PeerState> record,
      std::chrono::milliseconds connect_timeout = std::chrono::minutes(5));

  const GroupMembers& members() const { return members_; }
  const std::shared_ptr<PeerState>& record() const { return record_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// Collectives that this rank has started.
  uint64_t started() const { return started_; }

  /// The number of a reducer that is made over this group: as many were made
  /// before it.
  int number_reducer() noexcept { return reducers_++; }

  /// A reducer begins to average a pass; it ends when the result goes. Models
  /// may share a backward pass of one thread.
  /// @throws c10::Error when another thread's pass has not ended: the order in
  ///   which the buckets of both meet the other ranks' is left to chance.
  std::shared_ptr<const AveragedPass> begin_pass(const AveragedPass& pass);

  /// A member without which the last collective that was started cannot end;
  /// nothing when there is none.
  std::optional<Departure> missed_by() const;

  /// A member that has left and had started more collectives than this rank
  /// has.
  std::optional<Departure> behind() const;

  /// Whether a member has left in another way than by a call: its part of the
  /// last collectives may be missing.
  bool has_lost_one() const;

  /// Connects the GPU `device` of this rank with the other members', beside the
  /// bound device, as the parts of a module on several GPUs need. Collective:
  /// the devices of one call average with each other. Does nothing for a device
  /// that is connected, or over Gloo.
  /// @throws c10::Error when the ranks have not connected within
  ///   `connect_timeout`, or a member has left.
  void connect(c10::Device device);
  /// Whether collectives take tensors of that device.
  bool is_connected(c10::Device device) const;

  bool is_open() const { return state_ == State::open; }
  /// Whether a collective that was started may not have ended.
  bool may_be_working();
  /// Whether LibTorch has aborted the open group after an error that NCCL has
  /// found.
  bool has_failed() const;
  /// One line: that `what` failed because the group was aborted, and why.
  std::string failure(const std::string& what) const;
  /// @throws c10::Error with that line once the group was aborted, by whomever.
  void check_whole(const std::string& what) const;

  /// One line: what failed because of a departure.
  std::string error_of(const std::string& what,
                       const Departure& departure) const;
  /// @throws c10::Error with that line, and notes that the program was told.
  [[noreturn]] void fail(const std::string& what,
                         const Departure& departure) const;

  /// Waits until what is queued on a GPU has ended, or the group was aborted.
  void wait_until_idle();

  enum class End { finish, abort };
  /// Ends what was started (waits for it, or aborts it) and lets the backend
  /// go. Throws nothing.
  void close(End end) noexcept;

  const std::string getBackendName() const override { return name_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  /// Ends what hangs. Collectives throw from then on. Waits a second for it, at
  /// most: NCCL may take as long as a collective may.
  void abort() override;
  /// Closes this group before the job is left. Collective.
  void shutdown() override;
  /// NCCL's barrier uses the bound device, where the options name none.
  Work barrier(const c10d::BarrierOptions& options) override;

 protected:
  c10d::Backend& for_collective(
      const std::optional<c10::Device>& device) override;
  void not_started() override;
  c10d::Backend& for_message() override;

 private:
  enum class State { open, aborted, closed };

  std::optional<Departure> missing_for(uint64_t number) const;
  /// Null unless the group is open.
  c10::intrusive_ptr<c10d::Backend> open_backend() const;

  const GroupMembers members_;
  const std::string name_;
  const std::shared_ptr<PeerState> record_;
  const std::chrono::milliseconds connect_timeout_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<uint64_t> started_{0};
  std::atomic<int> reducers_{0};  // made over this group
  std::atomic<State> state_{State::open};
  mutable std::mutex connected_mutex_;
  std::vector<c10::Device> connected_;  // beside the bound one
  mutable std::mutex mutex_;            // of the backend's end
  std::mutex pass_mutex_;
  std::weak_ptr<const AveragedPass> pass_;  // the first of those that run
};

/// `group`, or the one it forwards to, where that is a group of the job; else
/// null.
const MonitoredBackend* monitored_backend_of(const c10d::Backend& group);
MonitoredBackend* monitored_backend_of(c10d::Backend& group);

/// This rank cannot do what the other ranks of `group` wait for: they hear that
/// it has left the job, and why. Over Gloo a closed connection ends their wait.
/// Does nothing in a group that is none of the job's, or where one of its ranks
/// has left, of which they hear.
void abort_and_announce(c10d::Backend& group, const std::string& why);

}  // namespace ddp::detail
