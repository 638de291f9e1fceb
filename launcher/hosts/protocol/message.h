#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "ddp/base/cluster/env_integer.h"
#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/options/rendezvous_config.h"

// Messages between the ddpruns of a job and its coordinator. A host sends its
// whole state again and again, and gets the state of the job in return. So a
// message that is lost, late or repeated does no harm.
namespace launcher {

inline constexpr int kMessageVersion = 5;
/// Most bytes of an encoded message with its newline.
inline constexpr size_t kLongestMessage = 16 * 1024;
/// Bound of generations, ranks and numbers of hosts.
inline constexpr int kLargestCount = ddp::detail::kMostRanks;

/// From a host: the first message of a connection.
struct Hello {
  int version = kMessageVersion;
  std::string token;
  JobTerms terms;
  std::string id;    ///< of this ddprun, the same in all its connections
  std::string host;  ///< name of the host for messages
  std::string role;
  int worker_count = 1;
  std::chrono::milliseconds keep_alive = RendezvousTimeouts().keep_alive;
  std::optional<int> wanted_rank;  ///< rank among the hosts
};

/// From a host: its state. Also sent as a sign of life.
struct HostState {
  int64_t number = 0;   ///< number of the message; older ones are ignored
  int generation = -1;  ///< of the last world that it knows; -1: none
  int host_rank = -1;   ///< its rank in that world
  bool joins = false;   ///< whether it waits for the next world
  std::optional<HostOutcome> outcome{};  ///< of its workers in that world
  Endpoint store{};  ///< endpoint of rank 0's store if this host gets rank 0
};

/// From a host: it leaves the job.
struct Goodbye {};

/// From the coordinator: nothing has changed. Also sent as a sign of life.
struct Noted {
  std::string waits_for{};  ///< reason why the host waits, for messages
};

/// From the coordinator: the world of this generation is broken.
struct Broken {
  int generation = 0;
  WorldBroken why;
};

/// The coordinator also sends WorldFormed, JobClosed and RendezvousLost, which
/// is a refusal.
using Message = std::variant<Hello,
                             HostState,
                             Goodbye,
                             Noted,
                             WorldFormed,
                             Broken,
                             JobClosed,
                             RendezvousLost>;

/// Encodes a message as a line of JSON with its newline. Shortens texts that
/// are too long. The names in a Hello must not be longer than decode() allows.
std::string encode(const Message& message);

/// Decodes a message; returns nothing for a line that encode() cannot make.
/// Never throws, and checks the bounds of every number and length. Reads only
/// the version of a Hello of another version.
std::optional<Message> decode(std::string_view line);

}  // namespace launcher
