#pragma once

#include <string>

namespace launcher {

/// Sets the name and the command line that tools (ps, top, pkill) show for this
/// process. Each is truncated to the space of the old one.
void set_process_title(const std::string& title);

}  // namespace launcher
