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

/// A connection from each rank to rank 0, over which all ranks hear at once who
/// leaves: rank 0 passes on what it is told, and the kernel closes the
/// connection of a process that ends, however it ends. A host that is silent
/// for a minute counts as gone. What is heard is noted in the record. (A child
/// forked without exec holds its parent's connection, too.)
///
/// One thread of its own, which sleeps until there is news. Not for a step.
class PeerMonitor {
 public:
  /// Called on the thread of its own after each departure, then now and then
  /// while it returns true.
  using Look = std::function<bool()>;

  struct Place {
    int rank;
    int world_size;
    std::string reach;  ///< see `BackendSpec::reach`
  };

  /// Rank 0 listens on its address towards `reach`, until all have connected,
  /// and says in the store where. Where a connection cannot be made, a warning
  /// says so, and nothing is heard over it.
  /// @throws c10::Error when the store is gone, or no thread can start.
  PeerMonitor(c10d::Store& store,
              const Place& place,
              std::shared_ptr<PeerState> record,
              Look look);
  /// Closes the connections, after what `look` holds: the other ranks hear that
  /// this one has ended.
  ~PeerMonitor();
  PeerMonitor(const PeerMonitor&) = delete;
  PeerMonitor& operator=(const PeerMonitor&) = delete;

  /// Tells the others that this rank leaves. Waits for nobody; any thread. Does
  /// nothing in a fork of the process.
  void say(const Departure& departure);

  /// Ends the thread, after what `look` holds; nothing is heard from then on.
  /// The connections stay: the kernel closes them with the process.
  void stop();

  /// Waits until rank 0 has closed its lines, at most `timeout`. Returns at
  /// once on rank 0.
  void wait_for_rank_0(std::chrono::milliseconds timeout);

 private:
  struct Line {
    FileDescriptor socket;
    std::string unread;
    int rank = -1;            // until it has said which
    bool has_closed = false;  // its groups
  };

  void open(c10d::Store& store, const std::string& reach);
  void run();
  void wait_for_news(bool looks);
  void accept_one();
  void add(FileDescriptor socket, int rank);
  bool read(Line& line);
  bool hear(Line& line, const std::string& message);
  bool greet(Line& line, int rank);
  bool believe(const Line& line, const Departure& departure) const;
  void lose(int fd);
  void spread();

  const int rank_;
  const int world_size_;
  const pid_t process_;
  const std::shared_ptr<PeerState> record_;
  Look look_;
  FileDescriptor listener_;  // of rank 0
  Pipe wake_ = make_pipe();
  std::mutex mutex_;  // of lines_, which one thread alone changes
  std::condition_variable changed_;
  std::map<int, Line> lines_;    // by descriptor
  std::string said_;             // by this rank; also under the mutex
  std::set<int> greeted_;        // ranks that have connected to this one
  std::vector<Departure> news_;  // not passed on yet
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace ddp::detail
