#pragma once

#include <sys/ioctl.h>

#include <cstddef>
#include <optional>

#include "launcher/base/fd.h"

namespace launcher {

/// The size of the terminal that this process has as stdout, stderr or stdin;
/// nothing when none of them is one.
std::optional<winsize> own_terminal_size();

/// The size of a terminal whose lines are shown behind a prefix in one of
/// another size; 24 lines of 80 columns where that is not known. Pure.
winsize terminal_size(const std::optional<winsize>& own, size_t prefix_columns);

/// A pseudo-terminal for output: bytes come out as they are written into
/// `write`. It becomes nobody's controlling terminal, so no key pressed
/// elsewhere sends a signal through it. Once all hold of `write` is let go,
/// reading fails with EIO.
///
/// @throws LaunchError when the system has none to give
Pipe make_pseudo_terminal(const winsize& size);

}  // namespace launcher
