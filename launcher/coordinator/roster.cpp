#include "launcher/coordinator/roster.h"

#include <algorithm>
#include <vector>

#include "launcher/coordinator/seats.h"

namespace launcher {
namespace {

/// In the order in which they came.
std::vector<KnownHost*> joined_hosts(Roster& hosts) {
  std::vector<KnownHost*> joined;
  for (auto& [connection, host] : hosts) {
    if (host.state.joins) {
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

int joined(const Roster& hosts) {
  return static_cast<int>(
      std::count_if(hosts.begin(), hosts.end(), [](const auto& entry) {
        return entry.second.state.joins;
      }));
}

int seated(const Roster& hosts) {
  return static_cast<int>(
      std::count_if(hosts.begin(), hosts.end(), [](const auto& entry) {
        return entry.second.seat.has_value();
      }));
}

int succeeded(const Roster& hosts, int generation) {
  return static_cast<int>(
      std::count_if(hosts.begin(), hosts.end(), [&](const auto& entry) {
        return entry.second.seat && entry.second.has_succeeded_in(generation);
      }));
}

std::string names_of(const Roster& hosts,
                     const std::function<bool(const KnownHost&)>& is_meant) {
  constexpr int kMostNames = 8;
  std::string text;
  int count = 0;
  for (const auto& [connection, host] : hosts) {
    if (is_meant(host) && ++count <= kMostNames) {
      text += (text.empty() ? "" : ", ") + host.hello.host;
    }
  }
  return count > kMostNames
             ? text + " and " + std::to_string(count - kMostNames) + " more"
             : text;
}

std::string names_of_joined(const Roster& hosts) {
  return names_of(hosts,
                  [](const KnownHost& host) { return host.state.joins; });
}

int form_world(Roster& hosts, const JobTerms& terms, const World& world) {
  const std::vector<KnownHost*> joined = joined_hosts(hosts);
  int generation = world.generation;
  std::vector<Candidate> candidates;
  for (const KnownHost* host : joined) {
    generation = std::max(generation, host->state.generation);
    candidates.push_back(candidate_of(*host, terms));
  }
  ++generation;
  const auto seats = assign_seats(candidates, terms.most_hosts);
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
