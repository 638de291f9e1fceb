#include "launcher/hosts/coordinator/rank_assignment.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace launcher {
namespace {

std::pair<int, int> precedence(const Candidate& candidate) {
  if (candidate.is_survivor) {
    return {0, candidate.earlier_rank};
  }
  if (candidate.earlier_rank >= 0) {
    return {1, candidate.earlier_rank};
  }
  return candidate.wanted_rank ? std::pair(2, *candidate.wanted_rank)
                               : std::pair(3, 0);
}

/// Indices of the candidates that get a rank, ordered by that rank.
std::vector<size_t> participants(const std::vector<Candidate>& candidates,
                                 int most_hosts) {
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t left, size_t right) {
    return precedence(candidates[left]) < precedence(candidates[right]);
  });
  order.resize(std::min(order.size(), static_cast<size_t>(most_hosts)));
  return order;
}

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
        host.world ? host.world->host_rank : host.state.host_rank;
    candidate.is_survivor = host.world.has_value();
  }
  return candidate;
}

}  // namespace

std::vector<std::optional<World>> assign_ranks(
    const std::vector<Candidate>& candidates, int most_hosts) {
  const std::vector<size_t> order = participants(candidates, most_hosts);
  std::vector<std::optional<World>> worlds(candidates.size());
  World next;
  next.host_count = static_cast<int>(order.size());
  std::map<std::string, int> workers_of_role;
  for (const size_t index : order) {
    const Candidate& candidate = candidates[index];
    int& of_role = workers_of_role[candidate.role];
    next.role = RoleRanks{.first_rank = of_role};
    next.master = candidates[order.front()].store;
    worlds[index] = next;
    ++next.host_rank;
    next.first_rank += candidate.worker_count;
    of_role += candidate.worker_count;
  }
  for (const size_t index : order) {
    worlds[index]->world_size = next.first_rank;
    worlds[index]->role->size = workers_of_role[candidates[index].role];
  }
  return worlds;
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
  const auto worlds = assign_ranks(candidates, terms.most_hosts);
  for (auto& [connection, host] : hosts) {
    host.world.reset();
  }
  for (size_t index = 0; index < joined.size(); ++index) {
    auto& own = joined[index]->world;
    own = worlds[index];
    if (own) {
      own->generation = generation;
      own->restarts = world.restarts;
    }
  }
  return generation;
}

}  // namespace launcher
