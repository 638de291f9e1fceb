#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/detail/parameter_server/link.h"
#include "dp/detail/parameter_server/packet.h"

namespace dp::detail {

/// Sends one push in parts while more come, by a thread a server: a server
/// without room for it keeps none of the others waiting. What a thread throws
/// is thrown at the end.
///
/// Thread contract: `send` from any thread; the links are its own until it has
/// ended.
class PartSenders {
 public:
  using Links = std::vector<std::unique_ptr<Link>>;

  /// @throws c10::Error when a thread cannot be started.
  explicit PartSenders(const Links& links);
  /// Aborts the links when neither `finish` nor `cancel` was called.
  ~PartSenders();
  PartSenders(const PartSenders&) = delete;
  PartSenders& operator=(const PartSenders&) = delete;

  /// @param gradient  of one of the server's parameters. Its memory must stay
  ///   as it is.
  void send(size_t server, size_t parameter, const Packet& gradient);

  /// Sends the rest of the push, and waits.
  void finish(const std::vector<Packet>& rest, double loss);
  /// Has the servers forget what has been sent, and waits.
  void cancel();

  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  enum class End { none, push, drop };
  struct Part {
    int64_t parameter = 0;
    at::Tensor gradient;  // flat
    int64_t bytes = 0;    // without what aligns it
  };

  void run(size_t server);
  void converse(size_t server);
  bool next(size_t server, Part& part);
  void show_life();
  void end(End how);

  const Links& links_;
  std::atomic<int64_t> sent_bytes_{0};
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::deque<Part>> parts_;  // by server
  End end_ = End::none;
  const std::vector<Packet>* rest_ = nullptr;
  double loss_ = 0;
  std::exception_ptr failure_;
  std::mutex done_mutex_;  // guards what follows, and the links of those done
  std::vector<size_t> done_;
  std::vector<std::thread> threads_;
};

}  // namespace dp::detail
