#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "launcher/net/connection.h"

namespace launcher {

/// Tells who connects to a job's socket what the job does, and parts: nothing
/// is asked. Who does not read keeps one of few places until others need it,
/// and who writes loses his.
class StatusServer {
 public:
  /// @param folder of the job's, where the socket is made; empty: there is none
  /// @param describe what is told; called by the loop
  StatusServer(EventLoop& loop,
               const std::string& folder,
               std::function<std::string()> describe);
  /// Removes the socket.
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

 private:
  void listen();
  void accept();

  EventLoop& loop_;
  std::function<std::string()> describe_;
  std::string path_;
  Fd listener_;
  EventLoop::Token watch_ = 0;
  uint64_t last_guest_ = 0;
  std::map<uint64_t, std::unique_ptr<Connection>> guests_;
};

}  // namespace launcher
