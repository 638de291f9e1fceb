#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "dp/servers/detail/message.h"

namespace dp::detail {

/// Thrown by a `Link` whose peer is gone or does not keep to the protocol.
struct LinkError : c10::Error {
  using c10::Error::Error;
};

/// A connection between a server and a worker: a group of two ranks, so that a
/// rank that dies breaks no other connection.
///
/// Every call throws LinkError, "PEER is gone: why", when the peer has closed
/// the connection or is silent for too long; `receive` also when it sends what
/// is no message.
///
/// Thread contract: one thread, but `abort` from any. A thread of its own waits
/// for the end of the connection.
class Link {
 public:
  /// @param group  of this rank and the peer
  /// @param peer  what errors call the other side
  /// @throws c10::Error where no thread can start.
  Link(c10::intrusive_ptr<c10d::Backend> group,
       std::string peer,
       std::chrono::milliseconds timeout);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Starts to send a message, and a payload of memory after it if one is
  /// given and not empty. The payload, one-dimensional, must stay as it is
  /// until `flush`.
  void post(const Message& message, const at::Tensor& payload = at::Tensor());
  /// Waits until all that was posted is sent.
  void flush(std::chrono::milliseconds timeout);
  void flush() { flush(timeout_); }
  void send(const Message& message, const at::Tensor& payload = at::Tensor()) {
    post(message, payload);
    flush();
  }

  Message receive();
  /// Fills `payload` with the one that follows the last message, or a piece of
  /// it with the next piece.
  void receive_payload(const at::Tensor& payload);

  /// Throws: the peer has sent what it should not, such as "parameters".
  [[noreturn]] void refuse(const std::string& what) const;

  /// The peer has said why it has ended: it need not be told.
  void note_end() { has_ended_ = true; }
  bool has_ended() const { return has_ended_; }

  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Ends a call that waits, and all later ones, with an error.
  void abort();

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;

  void post_tensor(const at::Tensor& tensor);
  void receive_tensor(const at::Tensor& tensor);
  Work watch(std::vector<Work>& running, Work work);
  void forget(std::vector<Work>& running, const Work& work);
  void finish_send(const Work& work, std::chrono::milliseconds timeout);
  void start_guard();
  void await_end();
  template <class Run>
  void guarded(const Run& run) const;
  [[noreturn]] void fail(const std::string& why) const;

  c10::intrusive_ptr<c10d::Backend> group_;
  std::string peer_;
  std::chrono::milliseconds timeout_;
  std::vector<Work> posted_;
  bool has_ended_ = false;
  at::Tensor nothing_;  // what nobody sends
  Work guard_;          // receives it
  std::mutex mutex_;    // guards what follows
  std::vector<Work> sending_;
  std::vector<Work> receiving_;
  bool is_aborted_ = false;
  std::string lost_;  // why the connection has ended; empty while it is there
  std::thread waits_;
};

}  // namespace dp::detail
