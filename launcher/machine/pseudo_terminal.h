#pragma once

#include <sys/ioctl.h>

#include <cstddef>
#include <optional>

#include "launcher/base/fd.h"

namespace launcher {

/// Returns the size of the terminal that is this process's stdout, stderr or
/// stdin; std::nullopt if none of them is a terminal.
std::optional<winsize> own_terminal_size();

/// Returns the size of a pseudo-terminal for lines that are shown after a
/// prefix in the terminal `own`. Without `own`, returns 24 lines of 80 columns.
/// Pure function.
winsize terminal_size(const std::optional<winsize>& own, size_t prefix_columns);

/// Creates a pseudo-terminal for output: bytes written to `write` are read from
/// `read` unchanged. It is not a controlling terminal, so no key press sends a
/// signal through it. When all copies of `write` are closed, reading fails with
/// EIO. Returns empty ends if the system cannot provide one.
Pipe make_pseudo_terminal(const winsize& size);

}  // namespace launcher
