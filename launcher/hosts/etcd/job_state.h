#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/options/values.h"

// The values of the two keys of a job in etcd.
namespace launcher {

/// Host and address of the coordinator of a job.
struct CoordinatorPlace {
  std::string id;    ///< of that generations ddprun
  std::string host;  ///< its name for messages
  Endpoint endpoint{};
};

/// State of a job that outlives its coordinator. It needs no ranks, because
/// every host sends its last rank to the next coordinator.
struct EtcdJobState {
  std::string job;  ///< identifies this run among all runs with one --rdzv-id
  std::string writer;   ///< id of the ddprun that wrote it
  std::string host{};   ///< name of the writer's host
  int generation = -1;  ///< last generation that was formed
  int host_count = 0;   ///< of that generation
  int restarts = 0;
  /// Ages of the last restarts when this was written.
  std::vector<std::chrono::milliseconds> restart_ages{};
  std::optional<JobClosed> closed{};
};

bool operator==(const EtcdJobState& left, const EtcdJobState& right);

/// Encodes a value as a line of JSON. Shortens texts for messages that are too
/// long. The names must not be longer than a message allows.
std::string encode(const CoordinatorPlace& place);
std::string encode(const EtcdJobState& record);

/// Decodes a value; returns nothing if encode() does not make such a text.
/// Never throws, and checks the bounds of every number and length.
std::optional<CoordinatorPlace> decode_place(std::string_view text);
std::optional<EtcdJobState> decode_job_state(std::string_view text);

}  // namespace launcher
