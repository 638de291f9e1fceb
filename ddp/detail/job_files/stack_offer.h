#pragma once

#include <string>

namespace ddp::detail {

/// Offers this process' stack to ddprun, as stack_text.h says, in the file at
/// `path`: the frames of the thread that gets the signal, which is the
/// process' first one unless that blocks it. The signal is the highest
/// real-time signal that has no handler and is not blocked; the handler neither
/// allocates nor takes a lock but the dynamic linker's.
///
/// Functions of a program itself have names only where it exports them
/// (-rdynamic, CMake's ENABLE_EXPORTS); else a frame is an offset, for
/// addr2line.
///
/// @returns false where there is no such file or signal, and at a second call
bool offer_stack(const std::string& path) noexcept;

}  // namespace ddp::detail
