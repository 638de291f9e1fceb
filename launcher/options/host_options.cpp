#include "launcher/options/host_options.h"

#include <algorithm>
#include <stdexcept>

#include "ddp/base/cluster/env_integer.h"
#include "launcher/base/error.h"
#include "launcher/options/command_line.h"
#include "launcher/options/rendezvous_config.h"

namespace launcher {
namespace {

constexpr int kDefaultPort = 29500;
constexpr std::chrono::milliseconds kLeastKeepAlive{10};
constexpr std::chrono::milliseconds kMostKeepAlive{std::chrono::hours(24)};
constexpr int kDefaultMeetingPort = 29400;  // torchrun's for c10d

void check_backend(const std::string& backend) {
  const std::vector<std::string>& known = backend_names();
  if (backend.empty() ||
      std::find(known.begin(), known.end(), backend) != known.end()) {
    return;
  }
  const bool is_etcd = backend == "etcd" || backend == "etcd-v2";
  throw UsageError("--rdzv-backend: expected one of " + one_of(known) +
                   ", but got \"" + backend + "\"" +
                   (is_etcd ? "; give --rdzv-backend=c10d, with which the "
                              "hosts meet at one of them (--rdzv-endpoint="
                              "HOST:PORT) and need no etcd"
                            : ""));
}

/// Port of the coordinator of static hosts: far from the ports of the store,
/// which users count up by hand.
int meeting_port_beside(int store_port) {
  constexpr int kDistance = 100;
  constexpr int kLastPort = 65535;
  return store_port +
         (store_port + kDistance > kLastPort ? -kDistance : kDistance);
}

}  // namespace

void HostOptions::bind(CommandLine& line) {
  line.group("Hosts");
  line.toggle("standalone",
              "This host alone; beats --master-*, --rdzv-* and a scheduler",
              [this] { standalone_ = true; });
  line.value("nnodes",
             "N|MIN:MAX",
             "Hosts of the job, each with its own ddprun; a range with "
             "c10d only [1, or the scheduler's]",
             into(hosts_, parse_host_range));
  line.value("node-rank",
             "N",
             "Rank of this host [0, or the scheduler's]",
             into(said_.host_rank, integer(0, ddp::detail::kMostRanks)));
  line.value("master-addr",
             "HOST",
             "Host with --node-rank 0 [127.0.0.1]",
             into(said_.master_addr, as_text));
  line.value("master-port",
             "PORT",
             "Port of rank 0's store [a free one; 29500 with several "
             "hosts]",
             unless_alone(into(said_.master_port, integer(0, 65535))));
  line.value("rdzv-endpoint",
             "HOST[:PORT]",
             "As --master-addr and --master-port; with c10d the place "
             "where several hosts meet [port 29400]",
             unless_alone([this](const std::string& text) {
               endpoint_ = text.empty() ? std::nullopt
                                        : std::optional(parse_endpoint(text));
             }));
  line.value("rdzv-backend",
             one_of(backend_names()),
             "static: each host is given its rank; c10d: they agree on "
             "ranks and restarts [static]",
             into(backend_, as_text));
  line.value("rdzv-id",
             "ID",
             "TORCHELASTIC_RUN_ID, also in names of folders",
             into(said_.run_id, as_text));
  bind_coordinated(line);
}

void HostOptions::bind_coordinated(CommandLine& line) {
  line.value("local-addr",
             "HOST",
             "With c10d: address of this host for the others [of its "
             "connection to --rdzv-endpoint]",
             into(local_address_, parse_host));
  line.value("rdzv-conf",
             "K=V,...",
             "With several hosts: join_timeout [600], keep_alive_interval "
             "[5], keep_alive_max_attempt [3]; "
             "with c10d last_call_timeout [30] and is_host; else "
             "meeting_port [100 above --master-port; 0: none]",
             unless_alone([this](const std::string& text) {
               read_settings(parse_settings(text));
             }));
}

/// --standalone has been read before.
CommandLine::Setter HostOptions::unless_alone(CommandLine::Setter set) {
  return [this, set = std::move(set)](const std::string& text) {
    if (!standalone_) {
      set(text);
    }
  };
}

void HostOptions::read_settings(
    const std::map<std::string, std::string>& settings) {
  for (const auto& [key, value] : settings) {
    try {
      read_setting(key, value);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(key + ": " + error.what());
    }
    const std::string warning = warning_about_setting(key);
    if (!warning.empty()) {
      unknown_settings_.push_back(warning);
    }
  }
}

void HostOptions::read_setting(const std::string& key,
                               const std::string& value) {
  if (key == "join_timeout") {
    timeouts_.join = parse_seconds(value);
  } else if (key == "last_call_timeout") {
    timeouts_.last_call = parse_seconds(value);
  } else if (key == "keep_alive_interval") {
    timeouts_.keep_alive =
        std::clamp(parse_seconds(value), kLeastKeepAlive, kMostKeepAlive);
  } else if (key == "keep_alive_max_attempt") {
    timeouts_.keep_alive_attempts = parse_integer(value, 1, 1000);
  } else if (key == "meeting_port") {
    meeting_port_ = parse_integer(value, 0, 65535);
  } else if (key == "is_host") {
    is_host_ = parse_truth(value);
  }
}

void HostOptions::resolve(LaunchOptions& options,
                          const Environment& environment) const {
  GivenHosts given = given_hosts();
  if (!standalone_) {
    options.cluster_note = add_cluster_hosts(given, environment);
  }
  const int count = given.host_count.value_or(1);
  const HostRange hosts = hosts_.value_or(HostRange{count, count});
  check(hosts, given);
  options.run_id = given.run_id;
  options.rendezvous = config_of(hosts, given);
}

RendezvousConfig HostOptions::config_of(const HostRange& hosts,
                                        const GivenHosts& given) const {
  if (has_dynamic_ranks(hosts)) {
    return c10d_config(hosts, given);
  }
  if (hosts.most > 1 && meeting_port_ != 0) {
    return static_config(master(given), given);
  }
  return UncoordinatedConfig{.master = master(given),
                             .host_rank = given.host_rank.value_or(0),
                             .host_count = hosts.most};
}

/// Values of the options, whichever of torchrun's ways gives them.
GivenHosts HostOptions::given_hosts() const {
  GivenHosts given = said_;
  if (hosts_) {
    given.host_count = hosts_->most;
  }
  if (endpoint_) {
    given.master_addr = endpoint_->host;
    if (endpoint_->port != 0) {
      given.master_port = endpoint_->port;
    }
  }
  return given;
}

/// Whether the coordinator assigns the ranks.
bool HostOptions::has_dynamic_ranks(const HostRange& hosts) const {
  return !standalone_ && backend_ == "c10d" && hosts.most > 1;
}

void HostOptions::check(const HostRange& hosts, const GivenHosts& given) const {
  const std::string most = std::to_string(hosts.most);
  const std::string range = std::to_string(hosts.least) + ":" + most;
  if (given.host_rank.value_or(0) >= hosts.most) {
    throw UsageError("--node-rank: expected a rank below --nnodes (" + most +
                     "), but got " + std::to_string(*given.host_rank));
  }
  if (standalone_ && hosts.most != 1) {
    throw UsageError("--standalone: expected one host, but got --nnodes " +
                     most + "; leave one of the two out");
  }
  if (!standalone_) {
    check_backend(backend_);
  }
  if (hosts.least != hosts.most && !has_dynamic_ranks(hosts)) {
    throw UsageError(
        "--nnodes: expected a fixed number of static hosts, but "
        "got " +
        range + "; give --rdzv-backend=c10d and --rdzv-endpoint");
  }
}

CoordinatedConfig HostOptions::common_config(const HostRange& hosts,
                                             const GivenHosts& given) const {
  CoordinatedConfig config;
  config.terms.least_hosts = hosts.least;
  config.terms.most_hosts = hosts.most;
  config.wanted_rank = given.host_rank;
  config.local_address = local_address_;
  config.scheduler = given.scheduler;
  config.timeouts = timeouts_;
  return config;
}

CoordinatedConfig HostOptions::static_config(const Endpoint& master,
                                             const GivenHosts& given) const {
  const int count = given.host_count.value_or(1);
  if (meeting_port_ == master.port) {
    throw UsageError("--rdzv-conf: expected a meeting_port other than " +
                     std::to_string(master.port) +
                     ", at which rank 0 listens (--master-port)");
  }
  CoordinatedConfig config = common_config({count, count}, given);
  config.store = master;
  config.terms.ranks_are_fixed = true;
  config.local_address.clear();
  config.wanted_rank = given.host_rank.value_or(0);
  config.coordinator = {
      .endpoint = {master.host,
                   meeting_port_.value_or(meeting_port_beside(master.port))},
      .is_here = config.wanted_rank == 0,
      .host_option = "--master-addr",
      .port_option = "--rdzv-conf=meeting_port"};
  return config;
}

CoordinatedConfig HostOptions::c10d_config(const HostRange& hosts,
                                           const GivenHosts& given) const {
  // The first host of a scheduler serves as well as a host that the user names;
  // --master-addr is for static hosts and does not count.
  const bool is_told = !said_.master_addr && given.master_addr;
  if (!endpoint_ && !is_told) {
    throw UsageError(
        "--rdzv-endpoint: expected the host where the others meet, but got "
        "none; give the same HOST:PORT on every host");
  }
  CoordinatedConfig config = common_config(hosts, given);
  Endpoint& endpoint = config.coordinator.endpoint;
  endpoint = endpoint_.value_or(
      Endpoint{given.master_addr.value_or(""), given.master_port.value_or(0)});
  if (endpoint.port == 0) {
    endpoint.port = kDefaultMeetingPort;
  }
  config.coordinator.is_here = is_host_;
  return config;
}

Endpoint HostOptions::master(const GivenHosts& given) const {
  const bool one_host = given.host_count.value_or(1) == 1;
  if (standalone_) {
    return {"127.0.0.1", 0};
  }
  // With one host, c10d's endpoint is no place of rank 0's store, as in
  // torchrun: several jobs may name the same endpoint.
  const GivenHosts& named = one_host && backend_ == "c10d" ? said_ : given;
  Endpoint result{named.master_addr.value_or(one_host ? "127.0.0.1" : ""),
                  named.master_port.value_or(0)};
  if (result.host.empty()) {
    throw UsageError(
        "--master-addr: expected the name of the host with --node-rank 0, but "
        "got none; every host of a job with several needs it, and on one host "
        "it can be left out");
  }
  if (!one_host && result.port == 0) {
    result.port = kDefaultPort;
  }
  return result;
}

}  // namespace launcher
