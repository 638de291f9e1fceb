#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddp/base/file_descriptor.h"
#include "ddp/job/detail/peer_state.h"
#include "ddp/job/detail/wait_judge.h"

namespace ddp::detail {

/// The control channel of a job: a TCP connection from each rank to rank 0. It
/// carries
/// - departures: a rank reports the exception that ends it, and the kernel
///   closes the connection of a process that has ended in any way. A host that
///   is silent for a minute counts as gone. Rank 0 passes departures on,
///   several in one message, and every rank records them in its `PeerState`.
/// - waits: a rank reports a wait that has lasted a few seconds. Rank 0
///   decides which waits can never end (wait_judge.h) and tells all ranks.
/// - the end of the job: ranks in `leave` wait for rank 0 to say that all are
///   there.
/// - the stop request.
/// A job of N ranks sends O(N) messages. A child that was forked without exec
/// keeps its parent's connection open.
///
/// Uses one thread, which wakes for messages and once a second. Thread-safe.
class ControlChannel {
 public:
  struct Place {
    int rank;
    int world_size;
    std::string interface_hint;  ///< see `BackendSpec::interface_hint`
  };

  /// Functions of this rank that the channel's thread calls.
  struct Callbacks {
    /// Returns the present state of this rank, without `leaves`.
    std::function<RankReport()> report;
    /// Ends waits for ranks that have left. Called after each departure, and
    /// then about every 100 ms while it returns true.
    std::function<bool()> end_waits_for_departed;
    /// Ends waits that can never end. Returns true if this rank takes part in
    /// one of their groups.
    std::function<bool(const DeadWaits&)> end_dead_waits;
  };

  /// The end of a wait in `leave`.
  enum class End {
    all_are_here,  ///< or have ended
    dead_wait,     ///< this rank or another waits without an end
    host_is_gone,  ///< rank 0 has left
    too_late       ///< ranks are missing after the time limit
  };

  /// Connects this rank. Rank 0 listens on its address towards `interface_hint`
  /// until all ranks have connected, and publishes the address in the store,
  /// with a secret that every rank shows.
  /// @throws c10::Error if the store is gone, if this rank cannot reach rank 0,
  ///   or if the thread cannot start.
  ControlChannel(c10d::Store& store,
                 const Place& place,
                 std::shared_ptr<PeerState> state,
                 Callbacks callbacks);
  /// Stops the thread, destroys the callbacks, sends the rest and closes
  /// the connections.
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  /// Reports to the other ranks that an exception ends this rank, or its part
  /// in one group. Rank 0 waits at most a second for ranks that have not
  /// connected yet. Does nothing in a forked child.
  void report_failure(const std::string& text,
                      const std::string& group = "") noexcept;

  /// Tells all ranks that a stop is requested.
  void request_stop();

  /// Waits until all ranks have called this or have ended, at most `patience`.
  End leave(std::chrono::milliseconds patience);

  /// After `dead_wait`: the error.
  std::string dead_wait_error() const;

  /// On rank 0: the ranks that neither leave nor have left.
  std::vector<int> missing_ranks() const;

  /// Stops the thread after the running callback. The connections stay open
  /// until the process ends.
  void stop();

  /// Waits until rank 0 has closed its connections, at most `timeout`. Returns
  /// at once on rank 0.
  void wait_for_rank_0(std::chrono::milliseconds timeout);

 private:
  using Clock = std::chrono::steady_clock;
  using Fields = std::vector<std::string>;

  struct Connection {
    FileDescriptor socket;
    std::string unread;
    std::string unsent;
    int rank = -1;            // -1 until the hello message
    bool has_closed = false;  // it has closed its groups
  };

  /// A rank, as rank 0 knows it.
  enum class Stage : uint8_t { works, leaves, gone };

  void open(c10d::Store& store, const std::string& interface_hint);
  void connect(const std::string& where, const std::string& interface_hint);
  Connection* host_connection();
  void wake();
  void run();
  int poll_timeout() const;
  void wait_for_news();
  void accept_all();
  void add(FileDescriptor socket, int rank);
  bool read(Connection& connection);
  bool on_message(Connection& connection, const Fields& message);
  bool on_hello(Connection& connection, const Fields& message);
  bool have_all_met() const;
  bool on_host(const Fields& message);
  bool on_rank(int rank, const Fields& message);
  void on_disconnect(int fd);
  void end_leave(End end);
  void end_dead_waits(const DeadWaits& dead);
  void send_report();
  void report_when_due();
  void on_report(int rank, RankReport report);
  void set_gone(int rank);
  void add_news(Departure departure);
  void pass_news_on();
  bool is_any(Stage stage) const;
  void decide();
  void publish(const DeadWaits& dead);
  void send_all(const Fields& message);
  void send(Connection& connection, const Fields& message);
  void flush(Connection& connection);
  void flush_all(std::chrono::milliseconds patience);

  const int rank_;
  const int world_size_;
  const pid_t process_;
  const std::shared_ptr<PeerState> state_;
  Callbacks callbacks_;
  FileDescriptor listener_;  // rank 0 only
  Pipe wake_ = make_pipe();
  std::string secret_;

  mutable std::mutex mutex_;  // guards the following; the thread alone adds
  std::condition_variable changed_;
  std::map<int, Connection> connections_;  // by file descriptor
  std::vector<Stage> stages_;              // rank 0: by rank
  std::set<int> greeted_;                  // rank 0: ranks that have connected
  std::vector<Fields> passed_on_;          // rank 0: departures
  std::optional<End> end_;
  std::string dead_wait_error_;

  // Of the thread.
  bool has_departed_member_ = false;  // a group contains a rank that has left
  bool is_end_announced_ = false;     // of `leave`
  std::string last_report_;           // "" without waits
  std::vector<Departure> news_;       // not passed on yet
  int texts_ = 0;                     // of exceptions
  Clock::time_point passed_on_at_;
  std::map<int, RankReport> reports_;
  bool has_new_reports_ = false;
  Clock::time_point decided_at_;
  std::optional<Clock::time_point> dead_since_;
  std::optional<Clock::time_point> leave_began_;
  Clock::time_point asked_at_;

  std::atomic<bool> leaves_{false};
  std::atomic<bool> stops_{false};       // a stop was requested
  std::atomic<bool> sends_stop_{false};  // this rank has to pass it on
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace ddp::detail
