#pragma once

#include <optional>
#include <string>

#include "launcher/cli/command_line.h"
#include "launcher/cli/options.h"

namespace launcher {

/// The options about hosts and where they meet. Several say the same in
/// torchrun's different ways, so they are put together once all are known.
class HostOptions {
 public:
  /// @param line must not outlive this object
  void bind(CommandLine& line);

  /// Fills host_count, host_rank, master and run_id.
  ///
  /// @throws UsageError when they contradict each other
  void resolve(LaunchOptions& options) const;

 private:
  void check() const;
  Endpoint master() const;

  int host_count_ = 1;
  int host_rank_ = 0;
  std::optional<std::string> master_addr_;
  std::optional<int> master_port_;
  std::optional<Endpoint> endpoint_;
  std::string backend_;
  std::string run_id_;
  bool standalone_ = false;
};

}  // namespace launcher
