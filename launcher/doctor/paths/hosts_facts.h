#pragma once

#include <optional>
#include <string>
#include <vector>

// Measurements of ddprun --doctor for a job's hosts and the paths between them,
// separate from the judgement.
namespace launcher {

/// Outcome of a connection from one host to another.
enum class PathFault {
  none,
  untried,      ///< the connecting host reported nothing
  refused,      ///< no listener at that address, or a firewall
  unreachable,  ///< no route
  timed_out,    ///< no answer at all
  stranger,     ///< another program answers at that address
  stalled,      ///< short messages arrive, long ones do not
  broken,       ///< any other fault; see PathFacts::error
};

/// Measurement of a path from one host to another; hosts are numbers in
/// HostsFacts.
struct PathFacts {
  int from = 0;
  int to = 0;
  PathFault fault = PathFault::untried;
  std::string error{};            ///< the system's error message
  double round_trip_seconds = 0;  ///< the shortest of a few
  double bytes_per_second = 0;    ///< of one connection; 0: not measured
};

/// Combines two measurements of one path. Keeps the round trip of the earlier
/// one, which was measured without other traffic.
PathFacts merged(const PathFacts& before, PathFacts after);

/// A host that takes part in the test.
struct TestedHost {
  std::string name;
  std::string address;        ///< address for the other hosts' connections
  std::optional<int> rank{};  ///< --node-rank, if the user gave one
};

struct HostsFacts {
  std::string place{};  ///< "host0:29400", place of the rendezvous
  int least_hosts = 1;  ///< minimum number of hosts of the job
  int most_hosts = 1;
  bool ranks_are_fixed = false;
  int waited_seconds = 0;  ///< wait for missing hosts; 0: all joined
  std::string left_out{};  ///< why there was no test; empty: there was one
  std::string error{};     ///< why the test failed here; empty: it ran
  std::vector<TestedHost> hosts{};
  int own = 0;           ///< number of this host
  bool has_all = false;  ///< `paths` is complete; else own paths only
  /// Hosts that became silent during the test.
  std::vector<std::string> lost{};
  std::vector<PathFacts> paths{};
};

/// Returns a display name for each host, by number. Hosts with equal names get
/// numbers.
std::vector<std::string> names_of_hosts(const HostsFacts& facts);

/// Returns the measurement of a path; nullptr if there is none.
const PathFacts* find_path(const HostsFacts& facts, int from, int to);

}  // namespace launcher
