#pragma once

#include <optional>
#include <string>
#include <vector>

// What ddprun --doctor has measured of a job's hosts and of the paths between
// them: facts without a judgement.
namespace launcher {

/// Outcome of a connection from one host to another.
enum class PathFault {
  none,
  untried,      ///< the connecting host reported nothing
  refused,      ///< nobody listens at that address, or a firewall says so
  unreachable,  ///< there is no route
  timed_out,    ///< no answer at all
  stranger,     ///< somebody else answers at that address
  stalled,      ///< short messages arrive, long ones do not
  broken,       ///< anything else; see PathFacts::error
};

/// From one host to another, each by its number in HostsFacts.
struct PathFacts {
  int from = 0;
  int to = 0;
  PathFault fault = PathFault::untried;
  std::string error{};            ///< the system's word on it
  double round_trip_seconds = 0;  ///< the shortest of a few
  double bytes_per_second = 0;    ///< of one connection; 0: not measured
};

/// Combines two measurements of one path. The round trip stays that of the
/// earlier one, which carried no other traffic.
PathFacts merged(const PathFacts& before, PathFacts after);

/// A host that takes part in the test.
struct MetHost {
  std::string name;
  std::string address;        ///< the others connect to it
  std::optional<int> rank{};  ///< --node-rank, if the user gave one
};

struct HostsFacts {
  std::string place{};  ///< "host0:29400", where they meet
  int least_hosts = 1;  ///< that a job needs
  int most_hosts = 1;
  bool ranks_are_fixed = false;
  int waited_seconds = 0;  ///< for hosts that did not come; 0: all came
  std::string left_out{};  ///< why there was no test; empty: there was one
  std::string error{};     ///< why the test failed on this host; empty: it ran
  std::vector<MetHost> hosts{};
  int own = 0;           ///< the number of this host
  bool has_all = false;  ///< `paths` has all; else those from this host
  std::vector<std::string> lost{};  ///< hosts that fell silent during the test
  std::vector<PathFacts> paths{};
};

/// For people, by number: of several hosts with one name each is numbered.
std::vector<std::string> names_of_hosts(const HostsFacts& facts);

/// None where nothing is known of it.
const PathFacts* find_path(const HostsFacts& facts, int from, int to);

}  // namespace launcher
