#pragma once

#include <optional>
#include <string>

#include "launcher/cli/command_line.h"
#include "launcher/cli/options.h"
#include "launcher/cluster/cluster_hosts.h"

namespace launcher {

/// The options about hosts and where they meet. Several say the same in
/// torchrun's different ways, so they are put together once all are known.
class HostOptions {
 public:
  /// @param line must not outlive this object
  void bind(CommandLine& line);

  /// Fills host_count, host_rank, master and run_id. What is not said comes
  /// from the scheduler that has started this ddprun as one of several, if it
  /// is so, with a note.
  ///
  /// @param environment with the scheduler's variables
  /// @throws UsageError when they contradict each other
  void resolve(LaunchOptions& options, const Environment& environment) const;

 private:
  HostWords words() const;
  void check(int host_count, int host_rank) const;
  Endpoint master(const HostWords& words) const;

  HostWords said_;
  std::optional<Endpoint> endpoint_;
  std::string backend_;
  bool standalone_ = false;
  bool no_cluster_ = false;
};

}  // namespace launcher
