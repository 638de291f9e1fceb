#pragma once

#include <string>

namespace launcher {

/// --status: other jobs are asked, and nothing is started.
struct StatusOptions {
  std::string job;       ///< its id, or ddprun's process; empty: all
  bool as_json = false;  ///< --json
};

}  // namespace launcher
