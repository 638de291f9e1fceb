#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "test/fake_gpu/control.h"

namespace fake_gpu {

/// An injected fault at the `call`th NCCL operation of `rank`.
struct Fault {
  enum class Kind {
    none,
    die,        // the process is killed
    stall,      // the operation never ends
    error,      // the communicator reports an asynchronous error
    never_join  // the rank never joins the communicator
  };
  Kind kind = Kind::none;
  int rank = -1;
  int64_t call = 0;  // from 1; unused by never_join
};

/// Values of the environment variables FAKE_GPU_*; README.md lists them.
struct Settings {
  Mode mode = Mode::priority;
  uint64_t seed = 1;
  int devices = 2;
  size_t memory_bytes = size_t{1024} << 20;  // per device
  bool trace = false;
  std::string counts_file;  // empty: none
  uint64_t lose_wait = 0;
  Fault fault;
  std::chrono::seconds join_timeout{60};
};

/// Returns the value of a variable, or null if it is not set.
using Environment = std::function<const char*(const char* name)>;

/// Parses the variables.
/// @throws std::invalid_argument that names the variable and its valid values.
Settings parse_settings(const Environment& environment);

/// Returns the settings of this process, read once. An invalid variable ends
/// the process.
const Settings& settings();

}  // namespace fake_gpu
