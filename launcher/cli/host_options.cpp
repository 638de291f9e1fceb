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
  line.value("nnodes",
             "N",
             "Hosts of the job, each with its own ddprun [1]",
             into(host_count_, parse_host_count));
  line.value("node-rank",
             "N",
             "Rank of this host [0]",
             into(host_rank_, integer(0, 1 << 24)));
  line.value("master-addr",
             "HOST",
             "Name or address of the host with --node-rank 0 [127.0.0.1]",
             into(master_addr_, as_text));
  line.value("master-port",
             "PORT",
             "Port for rank 0's store [a free one; 29500 with several hosts]",
             into(master_port_, integer(0, 65535)));
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
             into(run_id_, as_text));
}

void HostOptions::resolve(LaunchOptions& options) const {
  check();
  options.host_count = host_count_;
  options.host_rank = host_rank_;
  options.master = master();
  options.run_id = run_id_;
}

void HostOptions::check() const {
  const std::string hosts = std::to_string(host_count_);
  if (host_rank_ >= host_count_) {
    throw UsageError("--node-rank: expected a rank below --nnodes (" + hosts +
                     "), but got " + std::to_string(host_rank_));
  }
  if (standalone_ && host_count_ != 1) {
    throw UsageError("--standalone: expected one host, but got --nnodes " +
                     hosts + "; leave one of the two out");
  }
  const bool c10d = backend_ == "c10d";
  if (!standalone_ && !backend_.empty() && backend_ != "static" && !c10d) {
    throw UsageError("--rdzv-backend: expected static or c10d, but got \"" +
                     backend_ + "\"");
  }
  if (c10d && host_count_ != 1) {
    throw UsageError("--rdzv-backend: expected static for --nnodes " + hosts +
                     ", but got c10d; give --node-rank, --master-addr and "
                     "--master-port on every host");
  }
}

Endpoint HostOptions::master() const {
  const bool one_host = host_count_ == 1;
  if (standalone_) {
    return {"127.0.0.1", 0};
  }
  Endpoint result{master_addr_.value_or(one_host ? "127.0.0.1" : ""),
                  master_port_.value_or(0)};
  if (endpoint_) {
    result.host = endpoint_->host;
    result.port = endpoint_->port != 0 ? endpoint_->port : result.port;
  }
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
