#pragma once

#include <string>

namespace launcher {

/// --status: reads the status of running jobs, and starts nothing.
struct StatusOptions {
  std::string job;       ///< run id or a process id of ddprun; empty: all
  bool as_json = false;  ///< --json
};

}  // namespace launcher
