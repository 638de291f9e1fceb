#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "launcher/options/rendezvous_config.h"
#include "launcher/plan/world.h"

namespace launcher::test {

/// Checks the invariants of a job, for any order in which hosts join and leave:
/// one group per generation, each rank assigned to exactly one host, one end of
/// the job, and success only if all hosts succeed.
///
/// @throws std::runtime_error from all calls if an invariant is violated
class MembershipOracle {
 public:
  explicit MembershipOracle(const JobTerms& terms) : terms_(terms) {}

  /// The coordinator has sent a world to a host.
  void on_told(const World& world);
  /// The coordinator has sent the world to all hosts.
  void on_all_told();
  /// Host number `host` has received the world and entered it.
  void on_entered(size_t host,
                  const World& world,
                  int worker_count,
                  const std::string& store_host);
  void on_succeeded(size_t host, int generation);
  void on_closed(int exit_code);

 private:
  /// Worlds sent for one generation, by host rank.
  struct Group {
    std::map<int, World> seats;
    std::map<int, size_t> hosts;  // hosts that entered
    std::set<size_t> succeeded;
  };

  JobTerms terms_;
  std::map<int, Group> groups_;
  std::optional<int> untold_;  // generation that is being sent
  std::optional<int> exit_code_;
};

}  // namespace launcher::test
