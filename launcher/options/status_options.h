#pragma once

#include <string>

namespace launcher {

/// --status: the status of jobs that run is read, and nothing is started.
struct StatusOptions {
  std::string job;       ///< its id, or ddprun's process; empty: all
  bool as_json = false;  ///< --json
};

}  // namespace launcher
