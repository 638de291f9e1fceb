#pragma once

#include <map>
#include <string>

#include "ddp/worker_env.h"

namespace ddp::detail {

using RankEnvironment = std::map<std::string, std::string>;

/// Pure: the variables that torchrun sets for one rank of a job of one host,
/// with the store at `port` of this machine.
///
/// @param caller  the environment that the rank has otherwise: like torchrun,
///   OMP_NUM_THREADS becomes 1 for more than one rank, unless it is set.
RankEnvironment rank_environment(int local_rank,
                                 int nprocs,
                                 int port,
                                 const EnvReader& caller);

}  // namespace ddp::detail
