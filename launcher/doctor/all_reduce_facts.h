#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace launcher {

/// What ddprun-allreduce has said, started as a job of this host. It links
/// LibTorch, which ddprun does not, so what is known of LibTorch is from here.
struct AllReduceFacts {
  bool is_installed = false;
  std::string path;      ///< where it is, or should be
  std::string error;     ///< why there is no result; empty: there is one
  std::string libtorch;  ///< "2.11.0"; empty: it did not come so far
  int cuda = 0;          ///< of LibTorch: 13000 is 13.0; 0: it has none
  int nccl = 0;          ///< that was loaded: 22809 is 2.28.9
  int nccl_built = 0;    ///< that it was built for
  int devices = 0;       ///< GPUs that LibTorch sees
  std::string backend;   ///< "nccl", "gloo"
  int ranks = 0;
  int64_t bytes = 0;   ///< that each rank put in
  double seconds = 0;  ///< the median of an all-reduce
};

/// Of what it writes the lines "NAME VALUE" that are known; anything else is
/// somebody else's. Fills the fields from `error` on.
AllReduceFacts parse_all_reduce(std::string_view text);

/// What a ring would send over each link in that time, in bytes a second: the
/// figure by which numbers of ranks can be compared.
double bus_bandwidth(const AllReduceFacts& facts);

}  // namespace launcher
