#pragma once

#include <string>

namespace fake_gpu {

/// A line on stderr, after the stand-in's name and the process.
void say(const std::string& text);

/// say(), then abort(): something the stand-in cannot do, or must not let pass.
[[noreturn]] void fail(const std::string& text);

/// Whether FAKE_GPU_TRACE asks for a line for each operation. Ask before
/// putting a line together.
bool tracing();

}  // namespace fake_gpu
