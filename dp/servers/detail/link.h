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

/// Thrown by a `Link` if its peer is lost or violates the protocol.
struct LinkError : c10::Error {
  using c10::Error::Error;
};

/// A connection between a server and a worker. Each connection is a process
/// group of two ranks, so that the exit of one rank breaks no other connection.
///
/// Every call throws LinkError, "PEER is gone: why", if the peer has closed the
/// connection or is silent for longer than the time-out. `receive` also throws
/// LinkError if the peer sends an invalid message.
///
/// Thread contract: one thread; `abort` may be called from any thread. The link
/// runs a thread of its own, which waits for the end of the connection.
class Link {
 public:
  /// @param group  consists of this rank and the peer
  /// @param peer  name of the peer in errors
  /// @throws c10::Error if the thread cannot be started.
  Link(c10::intrusive_ptr<c10d::Backend> group,
       std::string peer,
       std::chrono::milliseconds timeout);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Starts to send a message, followed by a payload of bytes if one is given
  /// and not empty. The payload must be one-dimensional and stay unchanged
  /// until `flush`.
  void post(const Message& message, const at::Tensor& payload = at::Tensor());
  /// Blocks until all posted messages are sent.
  void flush(std::chrono::milliseconds timeout);
  void flush() { flush(timeout_); }
  void send(const Message& message, const at::Tensor& payload = at::Tensor()) {
    post(message, payload);
    flush();
  }

  Message receive();
  /// Receives the payload that follows the last message into `payload`. For a
  /// payload in several pieces, each call receives the next piece.
  void receive_payload(const at::Tensor& payload);

  /// Throws LinkError because the peer has violated the protocol.
  /// @param what  received content, for example "parameters".
  [[noreturn]] void refuse(const std::string& what) const;

  /// Records that the peer has reported why it ended, so that no report need be
  /// sent to it.
  void note_end() { has_ended_ = true; }
  bool has_ended() const { return has_ended_; }

  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Makes a blocked call and all later calls throw LinkError.
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
  at::Tensor nothing_;  // buffer of the guard's receive; never filled
  Work guard_;          // pending receive that fails when the connection ends
  std::mutex mutex_;    // guards the members below
  std::vector<Work> sending_;
  std::vector<Work> receiving_;
  bool is_aborted_ = false;
  std::string lost_;  // why the connection has ended; empty while it is open
  std::thread waits_;
};

}  // namespace dp::detail
