#pragma once

#include <string>

namespace fake_gpu {

/// Prints a line on stderr, prefixed by the stand-in's name and the process id.
void say(const std::string& text);

/// Calls say(), then abort(), for unsupported operations and for errors of the
/// program.
[[noreturn]] void fail(const std::string& text);

/// Returns true if FAKE_GPU_TRACE requests a line for each operation. Check
/// before composing a line.
bool tracing();

}  // namespace fake_gpu
