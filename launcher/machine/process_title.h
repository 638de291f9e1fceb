#pragma once

#include <string>

namespace launcher {

/// The name and the command line of this process as tools show them (ps, top,
/// pkill): both become `title`, cut where the old ones were shorter.
void set_process_title(const std::string& title);

}  // namespace launcher
