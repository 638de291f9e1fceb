#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/doctor/paths/hosts_facts.h"

// Messages between the workers of the doctor's path test (see path_test.h).
// Each worker has a connection to rank 0. The same lines, written to stdout,
// are the worker's result for the doctor that started it.
namespace launcher {

/// Maximum size of an encoded message, including its newline.
inline constexpr size_t kLongestPathMessage = 256 * 1024;
/// Maximum number of hosts of a path test: a message holds a list of them.
inline constexpr int kMostProbedHosts = 256;

/// A worker of the test and its EchoServer.
struct PathPeer {
  TestedHost host;  ///< rank 0 may leave out the address
  std::string id;   ///< of its EchoServer
  int port = 0;     ///< of its EchoServer; 0: worker is missing
};

/// To rank 0: opens a connection.
struct PathHello {
  int rank = 0;
  PathPeer peer;
};

/// From rank 0: all workers by rank. Round 0 begins.
struct PathPeers {
  std::vector<PathPeer> peers;
};

/// To rank 0: measurements of a worker in a round.
struct PathReport {
  int rank = 0;
  int round = 0;
  std::vector<PathFacts> paths;  ///< without `from`
};

/// From rank 0: the next round begins.
struct PathRound {
  int round = 0;
};

/// From rank 0: the test is over.
struct PathEnd {
  std::vector<std::string> lost;  ///< names of hosts that became silent
};

/// To the doctor only: why the worker could not take part, and what to do.
struct PathFailure {
  std::string text;
};

using PathMessage = std::
    variant<PathHello, PathPeers, PathReport, PathRound, PathEnd, PathFailure>;

/// Encodes a message as a line of JSON with its newline.
std::string encode_path(const PathMessage& message);

/// Decodes a line; returns std::nullopt for a line that encode_path() does not
/// create. Never throws; every number and length is bounded.
std::optional<PathMessage> decode_path(std::string_view line);

}  // namespace launcher
