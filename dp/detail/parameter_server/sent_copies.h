#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace dp::detail {

/// Copies of parameters that are on their way to workers, while updates change
/// the parameters themselves. Workers that want the same ones share a copy, and
/// there are two at once, however many workers there are. Not thread-safe.
class SentCopies {
 public:
  explicit SentCopies(size_t workers) : sent_(workers) {}

  /// Whether there may be another copy.
  bool has_room() const;
  /// Whether a whole one may be sent: there is one already, or room for it.
  bool has_room_for_whole() const { return is_current_ || has_room(); }

  /// Notes what a worker is sent, until it has arrived.
  void send(size_t worker, const at::Tensor& copy) { sent_[worker] = copy; }
  /// The same with a copy of all parameters, which it makes where it has none.
  at::Tensor send_whole(size_t worker, const at::Tensor& parameters);
  void arrived(size_t worker) { sent_[worker] = at::Tensor(); }

  /// The parameters have changed.
  void expire() { is_current_ = false; }

 private:
  bool is_being_sent(const at::Tensor& copy) const;

  std::vector<at::Tensor> sent_;  // by worker
  at::Tensor newest_;             // of all parameters
  bool is_current_ = false;       // whether they have not changed since
};

}  // namespace dp::detail
