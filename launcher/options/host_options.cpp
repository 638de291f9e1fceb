#include "launcher/options/host_options.h"

#include <algorithm>

#include "launcher/base/error.h"
#include "launcher/options/etcd_options.h"
#include "launcher/options/rendezvous_values.h"
#include "launcher/options/setters.h"

namespace launcher {
namespace {

constexpr int kDefaultPort = 29500;
constexpr std::chrono::milliseconds kLeastKeepAlive{10};
constexpr int kDefaultMeetingPort = 29400;  // torchrun's for c10d

/// Where static hosts meet: apart from the ports that users count up by hand.
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
              "One host, with a free port of its own; beats --master-* and "
              "--rdzv-*",
              [this] { standalone_ = true; });
  line.value("nnodes",
             "N|MIN:MAX",
             "Hosts of the job, each with its own ddprun; a range with c10d "
             "and etcd only [1, or as many as srun or mpirun started]",
             into(hosts_, parse_host_range));
  line.value("node-rank",
             "N",
             "Rank of this host [0, or the scheduler's]",
             into(said_.host_rank, integer(0, 1 << 24)));
  line.value("master-addr",
             "HOST",
             "Name or address of the host with --node-rank 0 [127.0.0.1]",
             into(said_.master_addr, as_text));
  line.value("master-port",
             "PORT",
             "Port for rank 0's store [a free one; 29500 with several hosts]",
             into(said_.master_port, integer(0, 65535)));
  line.value(
      "rdzv-endpoint",
      "HOST[:PORT]",
      "The same as --master-addr and --master-port; with c10d and several "
      "hosts the host where they meet, and a port of it [29400]; with etcd "
      "where that is [2379], or its members, separated by commas",
      [this](const std::string& text) {
        endpoints_ =
            text.empty() ? std::vector<Endpoint>{} : parse_endpoints(text);
      });
  line.value("rdzv-backend",
             one_of(backend_names()),
             "static: the user gives each host its rank; c10d: they agree on "
             "their ranks and on restarts; etcd, etcd-v2: so, too, and go on "
             "when any host is lost [static]",
             into(backend_, as_text));
  line.value("rdzv-id",
             "ID",
             "TORCHELASTIC_RUN_ID, also in the name of the log folder",
             into(said_.run_id, as_text));
  bind_meeting(line);
  line.toggle("no-cluster",
              "Leaves the variables of Slurm, MPI and Kubernetes unread, which "
              "else say what --nnodes, --node-rank and --master-addr do not",
              [this] { no_cluster_ = true; });
}

void HostOptions::bind_meeting(CommandLine& line) {
  line.value("start-when",
             "N|all",
             "With c10d and etcd: hosts that the first start waits for, until "
             "last_call_timeout has passed [all of MAX]",
             [this](const std::string& text) {
               start_hosts_ =
                   text == "all"
                       ? std::nullopt
                       : std::optional(parse_integer(text, 1, 1 << 24));
             });
  line.value(
      "local-addr",
      "HOST",
      "With c10d and etcd: address of this host for the others [that of its "
      "connection to --rdzv-endpoint]",
      into(local_address_, parse_host));
  line.value(
      "rdzv-conf",
      "K=V,...",
      "With several hosts: join_timeout [600], keep_alive_interval [5], "
      "keep_alive_max_attempt [3], token_file [DDPRUN_TOKEN]; with c10d and "
      "etcd last_call_timeout [30]; "
      "with c10d is_host; with etcd protocol [http], ca_cert, ssl_cert, "
      "ssl_cert_key, etcd_prefix [/ddprun], lease_timeout [long enough for "
      "--grace-period]; else meeting_port [100 above "
      "--master-port; 0: hosts do not meet]",
      [this](const std::string& text) { take_settings(parse_settings(text)); });
}

void HostOptions::take_settings(
    const std::map<std::string, std::string>& settings) {
  unknown_settings_ = check_settings(settings);
  settings_ = settings;
  for (const auto& [name, value] : settings) {
    if (name == "join_timeout") {
      patience_.join = parse_seconds(value);
    } else if (name == "last_call_timeout") {
      patience_.last_call = parse_seconds(value);
    } else if (name == "keep_alive_interval") {
      patience_.keep_alive = std::max(parse_seconds(value), kLeastKeepAlive);
    } else if (name == "keep_alive_max_attempt") {
      patience_.keep_alive_attempts = parse_integer(value, 1, 1000);
    } else if (name == "meeting_port") {
      meeting_port_ = parse_integer(value, 0, 65535);
    } else if (name == "is_host") {
      is_host_ = std::string("1TtYy").find(value.front()) != std::string::npos;
    }
  }
}

void HostOptions::resolve(LaunchOptions& options,
                          const Environment& environment) const {
  GivenHosts all = words();
  if (!standalone_ && !no_cluster_) {
    options.cluster_note = add_cluster_hosts(all, environment);
  }
  const int count = all.host_count.value_or(1);
  const HostRange hosts = hosts_.value_or(HostRange{count, count});
  check(hosts, all);
  options.host_count = hosts.most;
  options.host_rank = all.host_rank.value_or(0);
  options.run_id = all.run_id;
  options.patience = patience_;
  if (do_meet(hosts)) {
    options.meeting =
        is_etcd(backend_) ? etcd_meeting(hosts, all) : c10d_meeting(hosts, all);
    return;
  }
  options.master = master(all);
  if (hosts.most > 1 && meeting_port_ != 0) {
    options.meeting = static_meeting(options.master, all);
  }
}

/// What the options say, whichever of torchrun's ways was taken.
GivenHosts HostOptions::words() const {
  GivenHosts words = said_;
  if (hosts_) {
    words.host_count = hosts_->most;
  }
  if (!endpoints_.empty() && !is_etcd(backend_)) {
    words.master_addr = endpoints_.front().host;
    if (endpoints_.front().port != 0) {
      words.master_port = endpoints_.front().port;
    }
  }
  return words;
}

bool HostOptions::do_meet(const HostRange& hosts) const {
  return !standalone_ && (backend_ == "c10d" || is_etcd(backend_)) &&
         hosts.most > 1;
}

void HostOptions::check(const HostRange& hosts, const GivenHosts& all) const {
  const std::string most = std::to_string(hosts.most);
  const std::string range = std::to_string(hosts.least) + ":" + most;
  if (all.host_rank.value_or(0) >= hosts.most) {
    throw UsageError("--node-rank: expected a rank below --nnodes (" + most +
                     "), but got " + std::to_string(*all.host_rank));
  }
  if (standalone_ && hosts.most != 1) {
    throw UsageError("--standalone: expected one host, but got --nnodes " +
                     most + "; leave one of the two out");
  }
  if (!standalone_ && !backend_.empty() &&
      std::count(backend_names().begin(), backend_names().end(), backend_) ==
          0) {
    throw UsageError("--rdzv-backend: expected one of " +
                     one_of(backend_names()) + ", but got \"" + backend_ +
                     "\"");
  }
  if (!standalone_ && endpoints_.size() > 1 && !is_etcd(backend_)) {
    throw UsageError(
        "--rdzv-endpoint: expected one HOST[:PORT], or with "
        "--rdzv-backend=etcd several, but got " +
        std::to_string(endpoints_.size()));
  }
  if (hosts.least != hosts.most && !do_meet(hosts)) {
    throw UsageError(
        "--nnodes: expected a fixed number of static hosts, but "
        "got " +
        range + "; give --rdzv-backend=c10d and --rdzv-endpoint");
  }
  if (start_hosts_ &&
      (*start_hosts_ < hosts.least || *start_hosts_ > hosts.most)) {
    throw UsageError("--start-when: expected all or a number in --nnodes " +
                     range + ", but got " + std::to_string(*start_hosts_));
  }
}

/// What it has of all backends.
Meeting HostOptions::meeting(const HostRange& hosts,
                             const GivenHosts& all) const {
  Meeting meeting;
  meeting.terms.least_hosts = hosts.least;
  meeting.terms.most_hosts = hosts.most;
  meeting.start_hosts = hosts.most;
  meeting.wanted_rank = all.host_rank;
  meeting.patience = patience_;
  const auto file = settings_.find("token_file");
  meeting.token_file = file == settings_.end() ? "" : file->second;
  return meeting;
}

Meeting HostOptions::static_meeting(const Endpoint& master,
                                    const GivenHosts& all) const {
  const int count = all.host_count.value_or(1);
  Meeting result = meeting({count, count}, all);
  result.terms.ranks_are_fixed = true;
  result.option = "--master-addr";
  result.wanted_rank = all.host_rank.value_or(0);
  result.is_host = result.wanted_rank == 0;
  result.store = master;
  result.endpoint = {master.host,
                     meeting_port_.value_or(meeting_port_beside(master.port))};
  return result;
}

Meeting HostOptions::c10d_meeting(const HostRange& hosts,
                                  const GivenHosts& all) const {
  // A scheduler's first host is as good as one that the user names; the
  // --master-addr of static hosts is not meant.
  const bool is_told = !said_.master_addr && all.master_addr;
  if (endpoints_.empty() && !is_told) {
    throw UsageError(
        "--rdzv-endpoint: expected the host where the others meet, but got "
        "none; give the same HOST:PORT on every host");
  }
  Meeting result = meeting(hosts, all);
  result.endpoint = endpoints_.empty() ? Endpoint{all.master_addr.value_or(""),
                                                  all.master_port.value_or(0)}
                                       : endpoints_.front();
  if (result.endpoint.port == 0) {
    result.endpoint.port = kDefaultMeetingPort;
  }
  result.start_hosts = start_hosts_.value_or(hosts.most);
  result.is_host = is_host_;
  result.local_address = local_address_;
  return result;
}

/// etcd serves many jobs, so each needs a name there.
Meeting HostOptions::etcd_meeting(const HostRange& hosts,
                                  const GivenHosts& all) const {
  if (endpoints_.empty()) {
    throw UsageError(
        "--rdzv-endpoint: expected the HOST:PORT of etcd, but got none; give "
        "the same on every host");
  }
  if (all.run_id.empty()) {
    throw UsageError(
        "--rdzv-id: expected a name that no other job at this etcd has, but "
        "got none; give the same on every host of the job");
  }
  Meeting result = meeting(hosts, all);
  result.etcd = etcd_settings(settings_, endpoints_);
  result.endpoint = result.etcd->endpoints.front();
  result.start_hosts = start_hosts_.value_or(hosts.most);
  result.local_address = local_address_;
  return result;
}

Endpoint HostOptions::master(const GivenHosts& words) const {
  const bool one_host = words.host_count.value_or(1) == 1;
  if (standalone_) {
    return {"127.0.0.1", 0};
  }
  Endpoint result{words.master_addr.value_or(one_host ? "127.0.0.1" : ""),
                  words.master_port.value_or(0)};
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
