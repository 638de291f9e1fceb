#pragma once

#include <string>
#include <vector>

#include "launcher/coordinator/first_failure.h"
#include "launcher/rendezvous/rendezvous.h"

namespace launcher {

/// The failures that the hosts of one world have told of, one of each. Pure.
///
/// The first is the one that was earliest by the coordinator's clock; of those
/// without a time of it, and among them and others, the one that was told
/// first.
class ToldFailures {
 public:
  struct Told {
    std::string id;    ///< of the host
    std::string host;  ///< its name
    HostFailed failure;
  };

  /// A host's second failure in one world is its first, told again.
  void add(Told told);
  void clear() { told_.clear(); }

  /// There must be one.
  const Told& first() const;
  FirstFailure order() const;

 private:
  const Told& earliest(const Told* but) const;

  std::vector<Told> told_;
};

}  // namespace launcher
