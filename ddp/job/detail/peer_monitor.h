#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddp/base/file_descriptor.h"
#include "ddp/job/detail/departure.h"
#include "ddp/job/detail/peer_state.h"

namespace ddp::detail {

/// Reports departures of ranks to all ranks, over a TCP connection from each
/// rank to rank 0. Rank 0 forwards every report. If a process ends in any way,
/// the kernel closes its connection, which counts as a departure. A host that
/// is silent for a minute counts as gone. Departures are recorded in
/// `PeerState`. A child that was forked without exec keeps its parent's
/// connection open.
///
/// Uses one thread, which sleeps until a message arrives. Not for the training
/// path.
class PeerMonitor {
 public:
  /// Called on the monitor's thread after each departure, and then about every
  /// 100 ms while it returns true.
  using PollCallback = std::function<bool()>;

  struct Place {
    int rank;
    int world_size;
    std::string reach;  ///< see `BackendSpec::reach`
  };

  /// Connects this rank. Rank 0 listens on its address towards `reach` until
  /// all ranks have connected, and publishes the address in the store. If a
  /// rank cannot connect, it warns and receives no reports.
  /// @throws c10::Error if the store is gone or the thread cannot start.
  PeerMonitor(c10d::Store& store,
              const Place& place,
              std::shared_ptr<PeerState> record,
              PollCallback poll);
  /// Stops the thread, destroys `poll` and closes the connections, so that the
  /// other ranks see the end of this rank.
  ~PeerMonitor();
  PeerMonitor(const PeerMonitor&) = delete;
  PeerMonitor& operator=(const PeerMonitor&) = delete;

  /// Reports the departure of this rank to the others. Does not wait for them.
  /// Thread-safe. Does nothing in a forked child.
  void report(const Departure& departure);

  /// Stops the thread after the running call of `poll`; no reports are received
  /// afterwards. The connections stay open until the process ends.
  void stop();

  /// Waits until rank 0 has closed its connections, at most `timeout`. Returns
  /// at once on rank 0.
  void wait_for_rank_0(std::chrono::milliseconds timeout);

 private:
  struct Line {
    FileDescriptor socket;
    std::string unread;
    int rank = -1;            // -1 until the hello message
    bool has_closed = false;  // it has closed its groups
  };

  void open(c10d::Store& store, const std::string& reach);
  void run();
  void wait_for_news(bool looks);
  void accept_one();
  void add(FileDescriptor socket, int rank);
  bool read(Line& line);
  bool on_message(Line& line, const std::string& message);
  bool on_hello(Line& line, int rank);
  bool is_trusted(const Line& line, const Departure& departure) const;
  void on_disconnect(int fd);
  void forward_reports();

  const int rank_;
  const int world_size_;
  const pid_t process_;
  const std::shared_ptr<PeerState> record_;
  PollCallback poll_;
  FileDescriptor listener_;  // rank 0 only
  Pipe wake_ = make_pipe();
  std::mutex mutex_;  // guards lines_; the thread alone writes
  std::condition_variable changed_;
  std::map<int, Line> lines_;    // by file descriptor
  std::string reported_;         // report of this rank; guarded by mutex_
  std::set<int> greeted_;        // ranks that have connected to rank 0
  std::vector<Departure> news_;  // not forwarded yet
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace ddp::detail
