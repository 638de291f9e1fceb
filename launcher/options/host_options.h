#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options/cluster_hosts.h"
#include "launcher/options/command_line.h"
#include "launcher/options/options.h"

namespace launcher {

/// Options about hosts and their rendezvous. torchrun has several options for
/// one value, so resolve() combines them once the whole line is parsed.
class HostOptions {
 public:
  /// @param line must not outlive this object
  void bind(CommandLine& line);

  /// Fills rendezvous, run_id and cluster_note. Values that the options do not
  /// give come from the scheduler, if it has started a ddprun on each of
  /// several hosts; cluster_note then names them.
  ///
  /// @param environment with the scheduler's variables
  /// @throws UsageError when the options contradict each other
  void resolve(LaunchOptions& options, const Environment& environment) const;

  /// A line for each unknown key of --rdzv-conf: see
  /// warning_about_setting().
  const std::vector<std::string>& unknown_settings() const {
    return unknown_settings_;
  }

 private:
  void bind_coordinated(CommandLine& line);
  /// Returns a setter without effect after --standalone.
  CommandLine::Setter unless_alone(CommandLine::Setter set);
  void read_settings(const std::map<std::string, std::string>& settings);
  void read_setting(const std::string& key, const std::string& value);
  GivenHosts given_hosts() const;
  void check(const HostRange& hosts, const GivenHosts& given) const;
  bool has_dynamic_ranks(const HostRange& hosts) const;
  Endpoint master(const GivenHosts& given) const;
  RendezvousConfig config_of(const HostRange& hosts,
                             const GivenHosts& given) const;
  CoordinatedConfig common_config(const HostRange& hosts,
                                  const GivenHosts& given) const;
  CoordinatedConfig static_config(const Endpoint& master,
                                  const GivenHosts& given) const;
  CoordinatedConfig c10d_config(const HostRange& hosts,
                                const GivenHosts& given) const;

  GivenHosts said_;  // options but --nnodes, which is hosts_
  std::optional<HostRange> hosts_;
  std::optional<Endpoint> endpoint_;
  std::string backend_;
  std::string local_address_;
  std::optional<bool> is_host_;
  std::optional<int> meeting_port_;  // 0: static hosts have no coordinator
  RendezvousTimeouts timeouts_;
  std::vector<std::string> unknown_settings_;
  bool standalone_ = false;
};

}  // namespace launcher
