#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/net/address.h"

// Values of command line options: functions from text to types. Every function
// throws std::invalid_argument with "expected ..., but got ...". Blanks and
// line ends around a value, or around an item of a list, are left out.
namespace launcher {

/// Value of --nproc-per-node.
struct WorkerCount {
  enum class Kind { number, automatic, gpu, cpu };
  Kind kind = Kind::number;
  int number = 1;  ///< for Kind::number only
};

/// Value of --nnodes.
struct HostRange {
  int least = 1;
  int most = 1;
};

/// A subset of a worker's two output streams.
struct StreamSet {
  bool out = false;
  bool err = false;
};

/// Type of the workers' stdout and stderr.
enum class Output {
  lines,   ///< pipes, or pseudo-terminals if lines only go to a terminal, which
           ///< ddprun reads line by line
  inherit  ///< ddprun's own
};

/// --redirects and --tee: a set for every local rank.
class StreamMap {
 public:
  StreamMap() = default;
  explicit StreamMap(StreamSet all) : all_(all) {}
  explicit StreamMap(std::map<int, StreamSet> by_rank)
      : by_rank_(std::move(by_rank)) {}

  StreamSet at(int local_rank) const;
  /// Returns whether the sets of all ranks are empty.
  bool empty() const;

 private:
  StreamSet all_;
  std::map<int, StreamSet> by_rank_;
};

/// --numa-binding: the CPUs that a worker may run on.
enum class Binding {
  node,          ///< all CPUs of the worker's NUMA node
  socket,        ///< all CPUs of that node's socket
  exclusive,     ///< whole cores of that node, not shared
  core_complex,  ///< CPUs of that node with a common last cache
};

/// --on-preempt: a signal that announces that the machine will be taken from
/// the job.
struct Preemption {
  int signal = 0;
  /// Time for the workers to save and exit, before SIGTERM.
  std::chrono::milliseconds time{30'000};
};

/// Removes blanks and line ends around the text.
std::string_view stripped(std::string_view text);
/// Parses a decimal integer in [least, most].
int parse_integer(std::string_view text, int least, int most);
/// Parses a switch from the environment: an integer in Python's syntax, 0 is
/// off.
bool parse_switch(std::string_view text);
/// Parses "4", "auto", "gpu" or "cpu".
WorkerCount parse_worker_count(std::string_view text);
/// Parses "2", or a range "1:4".
HostRange parse_host_range(std::string_view text);
/// Parses "host", "host:port", "[::1]:port" or "::1"; port 0 if absent.
Endpoint parse_endpoint(std::string_view text);
/// Parses "0" none, "1" stdout, "2" stderr, "3" both; or a map "0:3,12:1", in
/// which ranks that are not named have none.
StreamMap parse_stream_map(std::string_view text);
/// Parses a comma-separated list without duplicates or empty items; keeps its
/// order.
std::vector<std::string> parse_list(std::string_view text);
/// Parses texts separated by commas, in which `,,` is a comma; or an empty
/// text. Keeps blanks.
std::vector<std::string> parse_texts(std::string_view text);
/// Parses comma-separated local ranks.
std::vector<int> parse_ranks(std::string_view text);
/// Parses seconds as a decimal number >= 0, at most a year.
std::chrono::milliseconds parse_seconds(std::string_view text);
/// Parses seconds as a decimal number > 0, at most a year.
std::chrono::duration<double> parse_interval(std::string_view text);
/// Parses one of `choices`.
std::string parse_choice(std::string_view text,
                         const std::vector<std::string>& choices);
/// Returns the names that parse_output() accepts.
const std::vector<std::string>& output_names();
/// Parses "lines" or "inherit".
Output parse_output(std::string_view text);
/// Parses names of signals that can be handled: "SIGTERM,SIGINT".
std::vector<int> parse_signals(std::string_view text);
/// Returns the names that parse_binding() accepts.
const std::vector<std::string>& binding_names();
/// Parses "node", "socket", "exclusive" or "core-complex".
Binding parse_binding(std::string_view text);
/// Parses exit codes from 1 to 255, separated by commas.
std::vector<int> parse_exit_codes(std::string_view text);
/// Parses --preempt-code: 1 to 255.
int parse_exit_code(std::string_view text);
/// Parses --on-preempt: "USR1" or "SIGUSR1:60", a signal and seconds.
Preemption parse_preemption(std::string_view text);

}  // namespace launcher
