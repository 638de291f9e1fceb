#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/hosts/etcd/gateway.h"

namespace launcher {

/// The leases of a coordinator, renewed together.
struct EtcdLeases {
  int64_t coordinator = 0;  ///< of its key: a short one
  int64_t record = 0;       ///< of the job's: it outlives a coordinator
};

/// One thing that a job wants of etcd, of which it has two keys: who
/// coordinates, and what outlives him.
struct EtcdCall {
  enum class Kind {
    read,      ///< both keys
    campaign,  ///< writes both, if they are as expected
    save,      ///< writes the record, if the coordinator is who it was
    renew,     ///< the leases, if the coordinator is who it was
    wait       ///< for the coordinator's key to change, a while
  };
  Kind kind = Kind::read;
  std::string coordinator{};         ///< value, of campaign
  std::string record{};              ///< value, of campaign and save
  int64_t coordinator_revision = 0;  ///< expected; of wait: seen
  int64_t record_revision = 0;       ///< expected, of campaign
  bool gives_up = false;             ///< save removes the coordinator's key
  EtcdLeases leases{};               ///< of save and renew
  std::chrono::seconds coordinator_time{0};  ///< of campaign's leases
  std::chrono::seconds record_time{0};
};

struct EtcdAnswer {
  enum class Outcome {
    done,
    denied,       ///< the keys are not as expected, or a lease is gone
    unreachable,  ///< it may have been done all the same
    hopeless      ///< will not be otherwise, unless somebody changes something
  };
  Outcome outcome = Outcome::unreachable;
  std::string text{};  ///< why, where there is none, and what to do
  std::optional<EtcdEntry> coordinator{};  ///< of read, and of what was denied
  std::optional<EtcdEntry> record{};
  int64_t revision = 0;  ///< of what was written
  EtcdLeases leases{};   ///< of campaign
};

}  // namespace launcher
