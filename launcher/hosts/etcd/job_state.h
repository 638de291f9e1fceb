#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/options/values.h"

// What a job keeps in etcd, as the values of its two keys.
namespace launcher {

/// Who coordinates a job, and where.
struct CoordinatorPlace {
  std::string id;    ///< of that ddprun
  std::string host;  ///< its name, for people
  Endpoint endpoint{};
};

/// What of a job outlives its coordinator. Ranks need not be in it: every host
/// tells the next coordinator the one that it had.
struct EtcdJobState {
  std::string job;      ///< of all runs with one --rdzv-id, which this is
  std::string writer;   ///< the id of the ddprun that has written it
  std::string host{};   ///< its name, for people
  int generation = -1;  ///< the last one that was formed
  int host_count = 0;   ///< of it
  int restarts = 0;
  /// How long ago the last ones were when this was written.
  std::vector<std::chrono::milliseconds> restart_ages{};
  std::optional<JobClosed> closed{};
};

bool operator==(const EtcdJobState& left, const EtcdJobState& right);

/// A line of JSON. Names that are too long for a message are the caller's
/// error, long texts for people are cut.
std::string encode(const CoordinatorPlace& place);
std::string encode(const EtcdJobState& record);

/// Nothing for whatever encode() does not make: never throws, and every number
/// and length is bounded.
std::optional<CoordinatorPlace> decode_place(std::string_view text);
std::optional<EtcdJobState> decode_job_state(std::string_view text);

}  // namespace launcher
