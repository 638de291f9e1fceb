#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/detail/reducer/grad_hooks.h"
#include "dp/detail/parameter_server/packet.h"
#include "dp/detail/parameter_server/parts/part_senders.h"
#include "dp/detail/parameter_server/session.h"

namespace dp::detail {

/// Gradients of the next push that set out in backward passes, once each. What
/// has changed since goes again with the rest, so that what is pushed is what
/// the `.grad`s are at the push.
///
/// Thread contract: one thread; its hooks run on any.
class EarlyPush {
 public:
  /// @param session  must live until `close`.
  explicit EarlyPush(const Session& session);

  /// From the first `arm` to the last `disarm` gradients set out.
  void arm();
  void disarm() { --guards_; }

  /// A push may follow.
  void open();
  /// By parameter of the server, whether its gradient is as it was sent. From
  /// here on none sets out until `open`.
  std::vector<bool> unchanged(size_t server);
  /// Sends the rest. False when nothing was sent, nor is the rest.
  bool finish(const std::vector<Packet>& rest, double loss);
  /// There will be no push of what was sent.
  void cancel();
  /// No link is used any more.
  void close();

  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Part {
    std::optional<Packet> copy;
    bool is_sent = false;
  };

  void send(size_t server, size_t parameter);
  std::unique_ptr<PartSenders> stop();

  const PartSenders::Links& links_;
  const std::vector<std::vector<at::Tensor>> shards_;
  std::atomic<int> guards_{0};
  std::mutex mutex_;  // guards what follows
  bool is_open_ = false;
  std::vector<std::vector<Part>> parts_;  // by server
  std::unique_ptr<PartSenders> senders_;  // null until a gradient is there
  int64_t sent_bytes_ = 0;
  std::optional<ddp::detail::GradHooks> hooks_;  // from the first `arm` on
};

}  // namespace dp::detail
