#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/hosts/etcd/gateway.h"

namespace launcher {

/// The two leases of a coordinator, which are renewed together.
struct EtcdLeases {
  int64_t coordinator = 0;  ///< of the coordinator's key; a short lease
  int64_t record = 0;       ///< of the job's state; outlives the coordinator
};

/// One call to etcd. A job has two keys: the coordinator's address, and the
/// record with the state of the job, which outlives a coordinator.
struct EtcdCall {
  enum class Kind {
    read,      ///< reads both keys
    campaign,  ///< writes both keys, if both have the expected revisions
    save,      ///< writes the record, if the coordinator's key is unchanged
    renew,     ///< renews the leases, if the coordinator's key is unchanged
    wait       ///< waits a while for a change of the coordinator's key
  };
  Kind kind = Kind::read;
  std::string coordinator{};  ///< value, for campaign
  std::string record{};       ///< value, for campaign and save
  /// Expected; for wait: of etcd when the key was read. An older one may be
  /// compacted, and etcd refuses to watch from there.
  int64_t coordinator_revision = 0;
  int64_t record_revision = 0;  ///< expected, for campaign
  bool gives_up = false;        ///< save removes the coordinator's key
  EtcdLeases leases{};          ///< for save and renew
  std::chrono::seconds coordinator_time{0};  ///< of campaign's leases
  std::chrono::seconds record_time{0};
};

struct EtcdAnswer {
  enum class Outcome {
    done,
    denied,       ///< a revision is not the expected one, or a lease has ended
    unreachable,  ///< no answer; etcd may have done it all the same
    hopeless      ///< will fail again until the configuration changes
  };
  Outcome outcome = Outcome::unreachable;
  std::string text{};  ///< reason for no answer, with advice
  std::optional<EtcdEntry> coordinator{};  ///< after read and denied calls
  std::optional<EtcdEntry> record{};
  int64_t revision = 0;  ///< of etcd then, and of the keys if they were written
  EtcdLeases leases{};   ///< of campaign
};

}  // namespace launcher
