#pragma once

#include <optional>
#include <string>
#include <vector>

// What ddprun --doctor has seen of the hosts of a job and of the ways between
// them: facts without a judgement.
namespace launcher {

/// What became of a connection that one host has tried to another.
enum class WayFault {
  none,
  untried,      ///< the host that was to try it has not said
  refused,      ///< nobody listens at that address, or a firewall says so
  unreachable,  ///< there is no route
  timed_out,    ///< no answer at all
  stranger,     ///< somebody else answers at that address
  stalled,      ///< short messages arrive, long ones do not
  broken,       ///< anything else; see WayFacts::error
};

/// From one host to another, each by its number in HostsFacts.
struct WayFacts {
  int from = 0;
  int to = 0;
  WayFault fault = WayFault::untried;
  std::string error{};            ///< the system's word on it
  double round_trip_seconds = 0;  ///< the shortest of a few
  double bytes_per_second = 0;    ///< of one connection; 0: not measured
};

/// Of the same way, what a later round has seen: the round trip stays that of a
/// way that carries nothing else.
WayFacts merged(const WayFacts& before, WayFacts after);

/// A host that has come.
struct MetHost {
  std::string name;
  std::string address;        ///< that the others connect to
  std::optional<int> rank{};  ///< where the user gives it
};

struct HostsFacts {
  std::string place{};  ///< "host0:29400", where they meet
  int least_hosts = 1;  ///< that a job needs
  int most_hosts = 1;
  bool ranks_are_fixed = false;
  int waited_seconds = 0;  ///< for hosts that have not come; 0: for none
  std::string left_out{};  ///< why nothing was tried; empty: it was
  std::string error{};     ///< why this host met nobody; empty: it did
  std::vector<MetHost> hosts{};
  int own = 0;           ///< the number of this host
  bool has_all = false;  ///< `ways` are all; else those from this host
  std::vector<std::string> lost{};  ///< hosts that came and then said no more
  std::vector<WayFacts> ways{};
};

/// For people, by number: of several hosts with one name each is numbered.
std::vector<std::string> names_of_hosts(const HostsFacts& facts);

/// None where nothing is known of it.
const WayFacts* find_way(const HostsFacts& facts, int from, int to);

}  // namespace launcher
