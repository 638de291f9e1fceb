#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "launcher/options/restart_budget.h"
#include "launcher/options/settings.h"
#include "launcher/options/values.h"

namespace launcher {

/// How long hosts wait for each other. The defaults and the names in
/// --rdzv-conf are torchrun's.
struct RendezvousTimeouts {
  /// join_timeout: for enough hosts, and for the coordinator to be there
  std::chrono::milliseconds join{600'000};
  /// last_call_timeout: for more hosts, once there are enough
  std::chrono::milliseconds last_call{30'000};
  /// keep_alive_interval: between two signs of life
  std::chrono::milliseconds keep_alive{5'000};
  /// keep_alive_max_attempt: of so many intervals each must bring one; one
  /// alone would be over when the sign is given
  int keep_alive_attempts = 3;
  /// After so long who still waits says so for the first time.
  std::chrono::milliseconds first_news{5'000};

  /// Between two questions to the name service for a host that has no address
  /// yet, or does not answer at those it has.
  std::chrono::milliseconds between_lookups{5'000};

  /// Who is silent for as long has vanished.
  std::chrono::milliseconds silence() const {
    return keep_alive * std::max(keep_alive_attempts, 2);
  }
};

/// What all hosts of a job must have been told alike.
struct JobTerms {
  std::string run_id;
  int least_hosts = 1;
  int most_hosts = 1;
  int max_restarts = 0;
  RestartRules restart_rules{};
  bool ranks_are_fixed = false;  ///< of hosts: each has the one it wants
  /// By etcd: the longest time from a group's end, or its coordinator's, to the
  /// end of its workers; see ending_time()
  std::chrono::milliseconds ending{0};
};

/// How hosts that tell each other of themselves find each other.
struct Meeting {
  Endpoint endpoint;
  std::string option = "--rdzv-endpoint";  ///< that names it
  JobTerms terms;
  int start_hosts = 1;          ///< that the first world waits for
  std::optional<bool> is_host;  ///< of the coordinator; nothing: find out
  std::string local_address;    ///< empty: as it appears in the connection
  std::optional<int> wanted_rank;
  /// Of static hosts, whose ranks are fixed: rank 0's; nothing: a free port of
  /// rank 0's host.
  std::optional<Endpoint> store;
  std::optional<EtcdSettings> etcd;  ///< where the coordinator is found
  std::string role;
  std::string token;       ///< that the job's hosts know; empty: none
  std::string token_file;  ///< that holds it; empty: see job_token()
  RendezvousTimeouts patience{};
};

/// Time that the end of a group takes at most: its hosts miss a coordinator,
/// their workers stop, and one sign of life is late.
///
/// @param stop_time  longest time from the stop of workers to their end:
///   --grace-period
inline std::chrono::milliseconds ending_time(
    const RendezvousTimeouts& patience, std::chrono::milliseconds stop_time) {
  return stop_time + patience.silence() + patience.keep_alive;
}

/// Least time of a coordinator's lease: renewals may be late by two keep-alives
/// before the group has to end.
inline std::chrono::milliseconds least_lease_time(const Meeting& meeting) {
  return meeting.terms.ending + 2 * meeting.patience.keep_alive;
}

/// Time of a coordinator's lease, by etcd.
inline std::chrono::milliseconds lease_time(const Meeting& meeting) {
  return meeting.etcd.value().lease.value_or(least_lease_time(meeting) +
                                             meeting.patience.silence());
}

}  // namespace launcher
