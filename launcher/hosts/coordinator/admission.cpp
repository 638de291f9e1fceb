#include "launcher/hosts/coordinator/admission.h"

#include <algorithm>

namespace launcher {
namespace {

/// Compares in the same time for every wrong token of one length.
bool is_same_token(const std::string& expected, const std::string& given) {
  unsigned difference = expected.size() == given.size() ? 0 : 1;
  for (size_t at = 0; at < expected.size() && at < given.size(); ++at) {
    difference |= static_cast<unsigned char>(expected[at] ^ given[at]);
  }
  return difference == 0;
}

std::string difference_of(const JobTerms& expected, const JobTerms& given) {
  if (expected.run_id != given.run_id) {
    return "expected job " + expected.run_id +
           ", which this endpoint serves, but got job " + given.run_id +
           "; give each job a --rdzv-endpoint of its own, and all hosts of "
           "one the same --rdzv-id";
  }
  if (expected.ranks_are_fixed != given.ranks_are_fixed) {
    return std::string("expected --rdzv-backend=") +
           (expected.ranks_are_fixed ? "static" : "c10d") +
           " as on the host that coordinates, but got another one";
  }
  if (host_range(expected) != host_range(given)) {
    return "expected --nnodes " + host_range(expected) +
           " as on the host that coordinates, but got " + host_range(given);
  }
  if (expected.max_restarts != given.max_restarts) {
    return "expected --max-restarts " + std::to_string(expected.max_restarts) +
           " as on the host that coordinates, but got " +
           std::to_string(given.max_restarts);
  }
  return "";
}

/// Reason to refuse the rank of a host if ranks are fixed; empty: none.
std::string rank_refusal(const Hello& hello, const JobTerms& terms) {
  if (!hello.wanted_rank || *hello.wanted_rank >= terms.most_hosts) {
    return "expected --node-rank below --nnodes (" +
           std::to_string(terms.most_hosts) + "), but got " +
           (hello.wanted_rank ? std::to_string(*hello.wanted_rank) : "none");
  }
  return "";
}

}  // namespace

std::string host_range(const JobTerms& terms) {
  const std::string least = std::to_string(terms.least_hosts);
  return terms.least_hosts == terms.most_hosts
             ? least
             : least + ":" + std::to_string(terms.most_hosts);
}

std::string refusal_of(const Hello& hello,
                       const Admission& admission,
                       const HostTable& hosts) {
  if (hello.version != kMessageVersion) {
    return "expected messages of version " + std::to_string(kMessageVersion) +
           ", but got version " + std::to_string(hello.version) +
           "; start the same ddprun on all hosts";
  }
  if (!admission.token.empty() &&
      !is_same_token(admission.token, hello.token)) {
    return "expected the token of the job, but got another one or none; give "
           "all its hosts the same DDPRUN_TOKEN";
  }
  if (hello.keep_alive != admission.keep_alive) {
    return "expected --rdzv-conf keep_alive_interval of " +
           std::to_string(admission.keep_alive.count()) +
           " ms as on the host that coordinates, but got " +
           std::to_string(hello.keep_alive.count()) + " ms";
  }
  int64_t workers = hello.worker_count;
  for (const auto& [connection, host] : hosts) {
    // The host may have lost an earlier connection, which still counts here.
    workers += host.hello.id != hello.id ? host.hello.worker_count : 0;
  }
  if (workers > kLargestCount) {
    return "expected at most " + std::to_string(kLargestCount) +
           " workers of all hosts, but got " + std::to_string(workers);
  }
  const std::string difference = difference_of(admission.terms, hello.terms);
  return difference.empty() && admission.terms.ranks_are_fixed
             ? rank_refusal(hello, admission.terms)
             : difference;
}

HostTable::iterator holder_of_rank(const Hello& hello,
                                   const JobTerms& terms,
                                   HostTable& hosts) {
  return std::find_if(hosts.begin(), hosts.end(), [&](const auto& entry) {
    const Hello& other = entry.second.hello;
    return terms.ranks_are_fixed && other.wanted_rank == hello.wanted_rank &&
           other.id != hello.id;
  });
}

std::string rank_taken_text(const Hello& hello, const KnownHost& holder) {
  return "expected --node-rank " +
         std::to_string(hello.wanted_rank.value_or(0)) +
         " of one host, but got it from " + holder.hello.host + " (" +
         holder.state.store.host + ") and " + hello.host +
         "; give each host its own";
}

}  // namespace launcher
