#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/etcd/call.h"
#include "launcher/loop/event_loop.h"
#include "launcher/process/background_call.h"

namespace launcher {

/// Calls of etcd that leave the loop free: one at a time, in a process of its
/// own, each with an answer in bounded time.
class EtcdCalls {
 public:
  using Handler = std::function<void(const EtcdAnswer&)>;

  EtcdCalls(EventLoop& loop,
            EtcdSettings settings,
            std::string run_id,
            Handler handler);
  ~EtcdCalls();
  EtcdCalls(const EtcdCalls&) = delete;
  EtcdCalls& operator=(const EtcdCalls&) = delete;

  /// Gives up the one before, if it has no answer yet.
  ///
  /// @throws std::system_error when no process can be made
  void start(const EtcdCall& call);

  /// What is known from all answers: with the last coordinator's addresses and
  /// this host's own, if the last answer had none.
  const EtcdAnswer& last() const { return last_; }
  /// Where the other hosts find this one: `told`; if that is empty, where it
  /// has reached etcd from, or, on etcd's own host, as that one is called.
  std::string own_address(const std::string& told) const;

 private:
  void take(const std::optional<std::string>& text);

  EventLoop& loop_;
  EtcdSettings settings_;
  std::string run_id_;
  Handler handler_;
  std::optional<BackgroundCall> call_;
  EtcdAnswer last_;
};

}  // namespace launcher
