#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/base/environment.h"

namespace launcher {

/// Output of ddprun-allreduce, which the doctor runs as a job of this host.
/// ddprun-allreduce links LibTorch, ddprun does not, so all facts about
/// LibTorch come from here.
struct AllReduceFacts {
  bool is_installed = false;
  std::string path;      ///< actual or expected location of the program
  std::string error;     ///< why there is no result; empty: result is valid
  std::string libtorch;  ///< "2.11.0"; empty: failed before
  int cuda = 0;          ///< version of LibTorch: 13000 is 13.0; 0: none
  int nccl = 0;          ///< loaded version: 22809 is 2.28.9
  int nccl_built = 0;    ///< version that LibTorch was built for
  int devices = 0;       ///< number of GPUs that LibTorch sees
  std::string backend;   ///< "nccl", "gloo"
  int ranks = 0;
  int64_t bytes = 0;   ///< size of each rank's tensor
  double seconds = 0;  ///< median time of an all-reduce
};

/// Parses the known lines "NAME VALUE" of the program's output and ignores all
/// other lines. Fills the fields from `error` on.
AllReduceFacts parse_all_reduce(std::string_view text);

/// Returns the bus bandwidth in bytes per second: the bytes that a ring sends
/// over each link, divided by the time. Comparable between numbers of ranks.
double bus_bandwidth(const AllReduceFacts& facts);

/// Runs ddprun-allreduce, which lies in the same folder as this program, as a
/// job with `worker_count` workers on this host, under its own ddprun. Blocks
/// until the job has ended, about two minutes at most. To be called from the
/// main thread.
AllReduceFacts run_all_reduce(int worker_count, const Environment& environment);

}  // namespace launcher
