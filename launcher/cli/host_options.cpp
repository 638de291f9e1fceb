#include "launcher/cli/host_options.h"

#include "launcher/cli/setters.h"
#include "launcher/error.h"

namespace launcher {
namespace {

constexpr int kDefaultPort = 29500;

}  // namespace

void HostOptions::bind(CommandLine& line) {
  line.group("Hosts");
  line.toggle("standalone",
              "One host, with a free port of its own; beats --master-* and "
              "--rdzv-*",
              [this] { standalone_ = true; });
  line.value(
      "nnodes",
      "N",
      "Hosts of the job, each with its own ddprun [1, or as many as srun "
      "or mpirun started]",
      into(said_.host_count, parse_host_count));
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
  line.value("rdzv-endpoint",
             "HOST[:PORT]",
             "The same as --master-addr and --master-port",
             [this](const std::string& text) {
               endpoint_ = text.empty() ? std::nullopt
                                        : std::optional(parse_endpoint(text));
             });
  line.value("rdzv-backend",
             "NAME",
             "static, or c10d for one host [static]",
             into(backend_, as_text));
  line.value("rdzv-id",
             "ID",
             "TORCHELASTIC_RUN_ID, also in the name of the log folder",
             into(said_.run_id, as_text));
  line.toggle("no-cluster",
              "Leaves the variables of Slurm, MPI and Kubernetes unread, which "
              "else say what --nnodes, --node-rank and --master-addr do not",
              [this] { no_cluster_ = true; });
}

void HostOptions::resolve(LaunchOptions& options,
                          const Environment& environment) const {
  HostWords all = words();
  if (!standalone_ && !no_cluster_) {
    options.cluster_note = add_cluster_hosts(all, environment);
  }
  options.host_count = all.host_count.value_or(1);
  options.host_rank = all.host_rank.value_or(0);
  check(options.host_count, options.host_rank);
  options.master = master(all);
  options.run_id = all.run_id;
}

/// What the options say, whichever of torchrun's ways was taken.
HostWords HostOptions::words() const {
  HostWords words = said_;
  if (endpoint_) {
    words.master_addr = endpoint_->host;
    if (endpoint_->port != 0) {
      words.master_port = endpoint_->port;
    }
  }
  return words;
}

void HostOptions::check(int host_count, int host_rank) const {
  const std::string hosts = std::to_string(host_count);
  if (host_rank >= host_count) {
    throw UsageError("--node-rank: expected a rank below --nnodes (" + hosts +
                     "), but got " + std::to_string(host_rank));
  }
  if (standalone_ && host_count != 1) {
    throw UsageError("--standalone: expected one host, but got --nnodes " +
                     hosts + "; leave one of the two out");
  }
  const bool c10d = backend_ == "c10d";
  if (!standalone_ && !backend_.empty() && backend_ != "static" && !c10d) {
    throw UsageError("--rdzv-backend: expected static or c10d, but got \"" +
                     backend_ + "\"");
  }
  if (c10d && host_count != 1) {
    throw UsageError("--rdzv-backend: expected static for --nnodes " + hosts +
                     ", but got c10d; give --node-rank, --master-addr and "
                     "--master-port on every host");
  }
}

Endpoint HostOptions::master(const HostWords& words) const {
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
