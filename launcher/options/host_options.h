#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options/cluster_hosts.h"
#include "launcher/options/command_line.h"
#include "launcher/options/options.h"

namespace launcher {

/// The options about hosts and where they meet. Several say the same in
/// torchrun's different ways, so they are put together once all are known.
class HostOptions {
 public:
  /// @param line must not outlive this object
  void bind(CommandLine& line);

  /// Fills host_count, host_rank, master, meeting and run_id. What is not said
  /// comes from the scheduler that has started this ddprun as one of several,
  /// if it is so, with a note.
  ///
  /// @param environment with the scheduler's variables
  /// @throws UsageError when they contradict each other
  void resolve(LaunchOptions& options, const Environment& environment) const;

  /// Of --rdzv-conf: see check_settings().
  const std::vector<std::string>& unknown_settings() const {
    return unknown_settings_;
  }

 private:
  void bind_meeting(CommandLine& line);
  void take_settings(const std::map<std::string, std::string>& settings);
  GivenHosts words() const;
  void check(const HostRange& hosts, const GivenHosts& all) const;
  bool do_meet(const HostRange& hosts) const;
  Endpoint master(const GivenHosts& words) const;
  Meeting meeting(const HostRange& hosts, const GivenHosts& all) const;
  Meeting c10d_meeting(const HostRange& hosts, const GivenHosts& all) const;
  Meeting etcd_meeting(const HostRange& hosts, const GivenHosts& all) const;
  Meeting static_meeting(const Endpoint& master, const GivenHosts& all) const;

  GivenHosts said_;  // but for the number of hosts
  std::optional<HostRange> hosts_;
  std::vector<Endpoint> endpoints_;
  std::string backend_;
  std::string local_address_;
  std::optional<int> start_hosts_;
  std::optional<bool> is_host_;
  std::optional<int> meeting_port_;  // 0: static hosts do not meet
  RendezvousTimeouts patience_;
  std::map<std::string, std::string> settings_;
  std::vector<std::string> unknown_settings_;
  bool standalone_ = false;
  bool no_cluster_ = false;
};

}  // namespace launcher
