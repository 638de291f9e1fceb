#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/options/values.h"

// The kinds of rendezvous, with the options of each. HostOptions chooses the
// kind.
namespace launcher {

/// How long hosts wait for each other. The defaults and the names in
/// --rdzv-conf are torchrun's.
struct RendezvousTimeouts {
  /// join_timeout: time in which least_hosts must join, and the coordinator
  /// must answer
  std::chrono::milliseconds join{600'000};
  /// last_call_timeout: time for more hosts to join once least_hosts have
  std::chrono::milliseconds last_call{30'000};
  /// keep_alive_interval: time between two messages of a host
  std::chrono::milliseconds keep_alive{5'000};
  /// keep_alive_max_attempt: number of intervals without a message after which
  /// a host is lost. At least 2 count, because 1 would end just when the next
  /// message is sent.
  int keep_alive_attempts = 3;
  /// Delay before a waiting host prints the reason of its wait.
  std::chrono::milliseconds until_news{5'000};

  /// Time between two queries to the name service for a host that has no
  /// address yet, or does not answer at its known addresses.
  std::chrono::milliseconds between_lookups{5'000};

  /// Time without a message after which a host is lost.
  std::chrono::milliseconds silence() const {
    return keep_alive * std::max(keep_alive_attempts, 2);
  }
};

/// Terms of a job. All its hosts must be started with the same ones.
struct JobTerms {
  std::string run_id;
  int least_hosts = 1;
  int most_hosts = 1;
  int max_restarts = 0;
  bool ranks_are_fixed = false;  ///< every host has the rank that it wants
};

/// Hosts without a coordinator: a single host, or static hosts with --rdzv-conf
/// meeting_port=0. The command line gives the ranks and rank 0's store.
struct UncoordinatedConfig {
  Endpoint master{"127.0.0.1", 0};  ///< port 0: ddprun chooses a free port
  int host_rank = 0;
  int host_count = 1;
};

/// Endpoint of a coordinator that the command line names. The coordinator runs
/// in the ddprun of that host.
struct CoordinatorEndpoint {
  Endpoint endpoint;
  /// Whether this host has the coordinator; nothing: if the endpoint's address
  /// is one of this host's.
  std::optional<bool> is_here;
  std::string host_option = "--rdzv-endpoint";  ///< option that names the host
  std::string port_option = "--rdzv-endpoint";  ///< option that names the port
};

/// Hosts with a coordinator, which agrees on restarts.
struct CoordinatedConfig {
  JobTerms terms;
  std::optional<int> wanted_rank;  ///< rank of this host among the hosts
  /// --local-addr; empty: the address of the connection to the coordinator.
  std::string local_address;
  std::string scheduler;  ///< that gives the number of hosts; empty: none
  std::string role;
  std::string token;  ///< secret of the job's hosts; empty: none
  RendezvousTimeouts timeouts{};
  CoordinatorEndpoint coordinator{};
  /// Rank 0's store with --rdzv-backend=static, by which the command line gives
  /// the ranks. Nothing: c10d; the coordinator assigns the ranks, and the store
  /// listens at a free port of rank 0's host.
  std::optional<Endpoint> store{};
};

using RendezvousConfig = std::variant<UncoordinatedConfig, CoordinatedConfig>;

/// Endpoint of rank 0's store if the command line gives it, else nullptr.
const Endpoint* given_store(const RendezvousConfig& config);

/// Largest number of hosts in a world.
int host_count(const RendezvousConfig& config);

/// Rank among the hosts that the user, or a scheduler, gives this host.
std::optional<int> host_rank(const RendezvousConfig& config);

// Values of their options, as in values.h.

/// Returns the names that --rdzv-backend accepts.
const std::vector<std::string>& backend_names();

/// Parses --rdzv-conf: "key=value,...", or an empty text. Ignores spaces around
/// keys and values, and quotes around the whole text, as from a YAML file. If a
/// key is repeated, the last value wins.
std::map<std::string, std::string> parse_settings(std::string_view text);

/// Returns a line for a setting that neither ddprun nor torchrun reads, with
/// the most similar known one; empty for a known setting.
std::string warning_about_setting(const std::string& key);

/// Parses the value of is_host: 1, true, t, yes, y, 0, false, f, no or n, in
/// lower or upper case.
bool parse_truth(std::string text);

/// Parses --local-addr: the name or address of a host, without a port, or an
/// empty text.
std::string parse_host(std::string_view text);

}  // namespace launcher
