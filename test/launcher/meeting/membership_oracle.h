#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "launcher/options/meeting.h"
#include "launcher/plan/world.h"

namespace launcher::test {

/// What must hold in every job, however its hosts come and go: no two groups of
/// one generation, no rank that nobody has or two have, one end of the job, and
/// success only of all.
///
/// @throws std::runtime_error, from all calls, when it does not hold
class MembershipOracle {
 public:
  explicit MembershipOracle(const JobTerms& terms) : terms_(terms) {}

  /// The coordinator has told a host of a world.
  void on_told(const World& world);
  /// It has told all that it had to tell.
  void on_all_told();
  /// A host has been told so. Its number is `host`.
  void on_entered(size_t host,
                  const World& world,
                  int worker_count,
                  const std::string& store_host);
  void on_succeeded(size_t host, int generation);
  void on_closed(int exit_code);

 private:
  /// What was told of one generation, by host rank.
  struct Group {
    std::map<int, World> seats;
    std::map<int, size_t> hosts;  // that entered
    std::set<size_t> succeeded;
  };

  JobTerms terms_;
  std::map<int, Group> groups_;
  std::optional<int> untold_;  // the generation that is being told
  std::optional<int> exit_code_;
};

}  // namespace launcher::test
