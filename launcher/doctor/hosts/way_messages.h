#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/doctor/hosts/hosts_facts.h"
#include "launcher/rendezvous/message.h"

// What the doctors of several hosts say to the one at whose host they meet. No
// message of a job's is one of these, nor the other way round: a doctor never
// takes a place in a job.
namespace launcher {

/// Bytes of an encoded one, its newline included.
inline constexpr size_t kLongestWayMessage = 256 * 1024;
/// That are gone through by pairs: all of them fit into a message.
inline constexpr int kMostProbedHosts = 256;

/// From a host: opens a connection.
struct WayHello {
  Hello hello;          ///< as in a job
  std::string address;  ///< its own, for the others; empty: ask the connection
  int port = 0;         ///< where its WayServer listens
};

/// To a host: try these at the same time.
struct WayOrder {
  struct Target {
    int host = 0;    ///< its number
    std::string id;  ///< of its WayServer
    std::string address;
    int port = 0;
  };

  int round = 0;
  int64_t bytes = 0;  ///< to send to each
  std::vector<Target> targets;
};

/// From a host: what came of it.
struct WayResults {
  int round = 0;
  std::vector<WayFacts> ways;  ///< without `from`
};

/// To a host: all is done.
struct WayFarewell {
  std::vector<MetHost> hosts;
  int own = 0;  ///< the number of the host that is told
  int waited_seconds = 0;
  std::vector<std::string> lost;
};

/// To a host: why it may not take part, and what to do.
struct WayRefusal {
  std::string text;
};

using WayMessage =
    std::variant<WayHello, WayOrder, WayResults, WayFarewell, WayRefusal>;

/// A line of JSON with its newline.
std::string encode_way(const WayMessage& message);

/// Nothing for whatever encode_way() does not make: never throws, and every
/// number and length is bounded.
std::optional<WayMessage> decode_way(std::string_view line);

}  // namespace launcher
