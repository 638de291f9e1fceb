#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/net/endpoint.h"

// The values of command line options: text in, types out. Every function throws
// std::invalid_argument with "expected ..., but got ...".
namespace launcher {

/// What --nproc-per-node asks for.
struct WorkerCount {
  enum class Kind { number, automatic, gpu, cpu };
  Kind kind = Kind::number;
  int number = 1;  ///< of Kind::number only
};

/// What --nnodes asks for.
struct HostRange {
  int least = 1;
  int most = 1;
};

/// Which of a worker's two streams are meant.
struct StreamSet {
  bool out = false;
  bool err = false;
};

/// What workers have as stdout and stderr.
enum class Output {
  automatic,  ///< pty where lines are only shown, on a terminal; else lines
  lines,      ///< pipes, which ddprun reads line by line
  pty,        ///< pseudo-terminals, which it reads as well
  inherit     ///< its own
};

/// --redirects and --tee: a set for every local rank.
class StreamMap {
 public:
  StreamMap() = default;
  explicit StreamMap(StreamSet all) : all_(all) {}
  explicit StreamMap(std::map<int, StreamSet> by_rank)
      : by_rank_(std::move(by_rank)) {}

  StreamSet at(int local_rank) const;
  /// Nothing is asked for any rank.
  bool empty() const;

 private:
  StreamSet all_;
  std::map<int, StreamSet> by_rank_;
};

/// An environment variable that differs from rank to rank; `{rank}`,
/// `{local_rank}`, `{host_rank}`, `{world_size}` and `{restart}` (how often the
/// job was started again) in the pattern stand for the numbers.
struct RankVariable {
  std::string name;
  std::string pattern;
};

/// A decimal integer in [least, most].
int parse_integer(std::string_view text, int least, int most);
/// A switch in the environment: an integer as Python reads it, 0 is off.
bool parse_switch(std::string_view text);
/// "4", "auto", "gpu" or "cpu".
WorkerCount parse_worker_count(std::string_view text);
/// "2", or a range "1:4".
HostRange parse_host_range(std::string_view text);
/// "host", "host:port", "[::1]:port" or "::1"; port 0 when absent.
Endpoint parse_endpoint(std::string_view text);
/// One or several, separated by commas.
std::vector<Endpoint> parse_endpoints(std::string_view text);
/// "0" none, "1" stdout, "2" stderr, "3" both; or a map "0:3,12:1", in which
/// the ranks that are not named have none.
StreamMap parse_stream_map(std::string_view text);
/// Comma separated, without duplicates or empty items, in the given order.
std::vector<std::string> parse_list(std::string_view text);
/// Texts separated by commas, in which `,,` is a comma; or nothing at all.
std::vector<std::string> parse_texts(std::string_view text);
/// Comma separated local ranks.
std::vector<int> parse_ranks(std::string_view text);
/// Seconds as a decimal number >= 0, at most a year.
std::chrono::milliseconds parse_seconds(std::string_view text);
/// Seconds as a decimal number > 0, at most a year.
std::chrono::duration<double> parse_interval(std::string_view text);
/// One of `choices`.
std::string parse_choice(std::string_view text,
                         const std::vector<std::string>& choices);
/// The names that parse_output() takes.
const std::vector<std::string>& output_names();
/// "lines", "pty" or "inherit".
Output parse_output(std::string_view text);
/// "SIGTERM,SIGINT": names of signals that can be handled.
std::vector<int> parse_signals(std::string_view text);
/// Octal rights of a file that its owner may read and write, such as "0640".
mode_t parse_file_mode(std::string_view text);
/// "NAME=pattern".
RankVariable parse_rank_variable(std::string_view text);

}  // namespace launcher
