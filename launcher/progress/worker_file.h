#pragma once

#include <sys/types.h>

#include <string>

#include "launcher/fd.h"

namespace launcher {

/// Opens a file that a worker writes, to be read. None where no file of its own
/// is: a worker may leave anything there.
Fd open_worker_file(const std::string& path);

/// What is in it from `start` on, at most `most` bytes.
std::string read_from(const Fd& file, off_t start, size_t most);

}  // namespace launcher
