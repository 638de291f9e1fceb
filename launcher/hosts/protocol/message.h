#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/options/meeting.h"

// What the ddpruns of a job and its coordinator say to each other. A host tells
// its whole state, again and again, and is told in return where the job stands:
// so a message that is lost, late or doubled does no harm.
namespace launcher {

inline constexpr int kMessageVersion = 4;
/// Bytes of an encoded message, its newline included.
inline constexpr size_t kLongestMessage = 16 * 1024;
/// Generations, ranks and hosts stay below it.
inline constexpr int kLargestCount = 1 << 24;

/// From a host: opens a connection.
struct Hello {
  int version = kMessageVersion;
  std::string token;
  JobTerms terms;
  std::string id;    ///< of this ddprun, in all its connections
  std::string host;  ///< its name, for people
  std::string role;
  int worker_count = 1;
  std::chrono::milliseconds keep_alive = RendezvousTimeouts().keep_alive;
  std::optional<int> wanted_rank;  ///< among the hosts
  /// Not sent: from where it came, see reading_messages(); empty: from this
  /// process.
  std::string seen_address{};
};

/// From a host: where it stands. Also the sign that it lives.
struct HostState {
  int64_t number = 0;   ///< counts them: an older one is old news
  int generation = -1;  ///< of the last world it was told of; -1: none
  int host_rank = -1;   ///< its rank in that world
  bool joins = false;   ///< it waits for the next one
  std::optional<HostOutcome> outcome{};  ///< of its workers in that world
  Endpoint store{};  ///< where rank 0's store can be, if it is this host's
  /// The last generation that it has heard ends by a failure, see Noted; what
  /// it knew of one then is in `outcome`.
  int heard_end = -1;
};

/// From a host: it takes no further part.
struct Goodbye {};

/// From the coordinator: nothing new. Also the sign that it lives.
struct Noted {
  std::string waits_for{};  ///< of a host that waits: what for, for people
  /// A generation that ends by a failure: whether this host knows of another
  /// one, too, it is to say now; -1: none does.
  int ends = -1;
  /// Of the host with rank 0: where its connection comes from, if that is not
  /// the address at which it expects the others.
  std::string seen_address{};
};

/// From the coordinator: the world of this generation is no more.
struct Broken {
  int generation = 0;
  WorldBroken why;
};

/// Beside the above, WorldFormed, JobClosed and RendezvousLost (a refusal) come
/// from the coordinator.
using Message = std::variant<Hello,
                             HostState,
                             Goodbye,
                             Noted,
                             WorldFormed,
                             Broken,
                             JobClosed,
                             RendezvousLost>;

/// A line of JSON with its newline. Texts for people are cut where they are too
/// long; a Hello with longer names than decode() takes is the caller's error.
std::string encode(const Message& message);

/// Nothing for whatever encode() does not make: never throws, and every number
/// and length is bounded. Of a Hello of another version only that is read.
std::optional<Message> decode(std::string_view line);

}  // namespace launcher
