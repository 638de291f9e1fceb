#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "launcher/hosts/protocol/message.h"
#include "launcher/plan/world.h"

namespace launcher {

/// A host as the coordinator of its job knows it.
struct KnownHost {
  Hello hello;
  HostState state{};
  std::optional<World> seat{};  ///< in the present world, else in the last
  std::chrono::steady_clock::time_point last_heard{};
  int64_t arrival = 0;  ///< its number among all hosts that ever came
  /// Its connection has ended, and it may come back on another one.
  std::optional<std::chrono::steady_clock::time_point> away_since{};
  std::string how_lost{};  ///< that connection
  /// Since then another host wants its rank.
  std::optional<std::chrono::steady_clock::time_point> contested_since{};

  /// It waits for the next world, and hears of it.
  bool has_joined() const { return state.joins && !away_since; }

  /// It was told of that world, and has seen none since.
  bool is_in(int generation) const { return state.generation == generation; }
  /// Its workers have succeeded in that world, and it does not start them
  /// again.
  bool has_succeeded_in(int generation) const;
};

/// The hosts of a job, by their connections.
using HostTable = std::map<uint64_t, KnownHost>;

/// How many hosts stand where. Whoever has many keeps it up to date as each of
/// them changes, and does not count all for each message.
struct HostCounts {
  int joined = 0;     ///< wait for the next world
  int seated = 0;     ///< are part of the present world
  int succeeded = 0;  ///< and of these, whose workers have succeeded in it
  int unheard = 0;    ///< is_unheard()

  HostCounts& operator+=(const HostCounts& other);
  HostCounts& operator-=(const HostCounts& other);
};
/// It is at work in that world, and has not said whether it has failed since it
/// heard that the world ends.
bool is_unheard(const KnownHost& host, int generation);
HostCounts counts_of(const KnownHost& host, int generation);
HostCounts counts_of(const HostTable& hosts, int generation);

/// "a, b": their names; of many the first, and how many there are beside.
///
/// @param count how many are meant: looks no further than it must
std::string names_of(const HostTable& hosts,
                     int count,
                     const std::function<bool(const KnownHost&)>& is_meant);
/// Of those that wait for the next world.
std::string names_of_joined(const HostTable& hosts, int count);

/// Gives the hosts that have joined their seats in a new world of at most
/// most_hosts, and takes the others' away. Pure.
///
/// @param world restarts, restart_after and the last generation
/// @returns the new generation: above that, and all that the hosts have seen
int form_world(HostTable& hosts, const JobTerms& terms, const World& world);

}  // namespace launcher
