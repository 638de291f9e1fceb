#include "launcher/hosts/protocol/host_table.h"

#include <algorithm>
#include <vector>

#include "launcher/hosts/protocol/rank_assignment.h"

namespace launcher {
namespace {

/// Joined hosts in the order of their arrival.
std::vector<KnownHost*> joined_hosts(HostTable& hosts) {
  std::vector<KnownHost*> joined;
  for (auto& [connection, host] : hosts) {
    if (host.has_joined()) {
      joined.push_back(&host);
    }
  }
  std::sort(joined.begin(),
            joined.end(),
            [](const KnownHost* left, const KnownHost* right) {
              return left->arrival < right->arrival;
            });
  return joined;
}

Candidate candidate_of(const KnownHost& host, const JobTerms& terms) {
  Candidate candidate{.worker_count = host.hello.worker_count,
                      .role = host.hello.role,
                      .store = host.state.store,
                      .wanted_rank = host.hello.wanted_rank};
  if (!terms.ranks_are_fixed) {
    candidate.earlier_rank =
        host.seat ? host.seat->host_rank : host.state.host_rank;
    candidate.is_survivor = host.seat.has_value();
  }
  return candidate;
}

}  // namespace

bool KnownHost::has_succeeded_in(int generation) const {
  return is_in(generation) && !state.joins && state.outcome &&
         std::holds_alternative<HostSucceeded>(*state.outcome);
}

HostCounts& HostCounts::operator+=(const HostCounts& other) {
  joined += other.joined;
  seated += other.seated;
  succeeded += other.succeeded;
  owing_report += other.owing_report;
  return *this;
}

HostCounts& HostCounts::operator-=(const HostCounts& other) {
  joined -= other.joined;
  seated -= other.seated;
  succeeded -= other.succeeded;
  owing_report -= other.owing_report;
  return *this;
}

bool owes_report(const KnownHost& host, int generation) {
  const HostState& state = host.state;
  const bool has_failed =
      state.outcome && std::holds_alternative<HostFailed>(*state.outcome);
  return host.seat && host.is_in(generation) && !state.joins && !has_failed &&
         state.heard_end != generation;
}

HostCounts counts_of(const KnownHost& host, int generation) {
  return {.joined = host.has_joined() ? 1 : 0,
          .seated = host.seat ? 1 : 0,
          .succeeded = host.seat && host.has_succeeded_in(generation) ? 1 : 0,
          .owing_report = owes_report(host, generation) ? 1 : 0};
}

HostCounts counts_of(const HostTable& hosts, int generation) {
  HostCounts counts;
  for (const auto& [connection, host] : hosts) {
    counts += counts_of(host, generation);
  }
  return counts;
}

std::string names_of(const HostTable& hosts,
                     int count,
                     const std::function<bool(const KnownHost&)>& is_meant) {
  constexpr int kMostNames = 8;
  const int shown = std::min(count, kMostNames);
  std::string text;
  int found = 0;
  for (auto next = hosts.begin(); next != hosts.end() && found < shown;
       ++next) {
    if (is_meant(next->second)) {
      text += (found == 0 ? "" : ", ") + next->second.hello.host;
      ++found;
    }
  }
  return count > shown
             ? text + " and " + std::to_string(count - shown) + " more"
             : text;
}

std::string names_of_joined(const HostTable& hosts, int count) {
  return names_of(
      hosts, count, [](const KnownHost& host) { return host.has_joined(); });
}

int form_world(HostTable& hosts, const JobTerms& terms, const World& world) {
  const std::vector<KnownHost*> joined = joined_hosts(hosts);
  int generation = world.generation;
  std::vector<Candidate> candidates;
  for (const KnownHost* host : joined) {
    generation = std::max(generation, host->state.generation);
    candidates.push_back(candidate_of(*host, terms));
  }
  ++generation;
  const auto seats = assign_ranks(candidates, terms.most_hosts);
  for (auto& [connection, host] : hosts) {
    host.seat.reset();
  }
  for (size_t index = 0; index < joined.size(); ++index) {
    auto& seat = joined[index]->seat;
    seat = seats[index];
    if (seat) {
      seat->generation = generation;
      seat->restarts = world.restarts;
      seat->restart_after = world.restart_after;
    }
  }
  return generation;
}

}  // namespace launcher
