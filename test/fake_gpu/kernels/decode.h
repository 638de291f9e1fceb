#pragma once

#include <functional>
#include <string>

namespace fake_gpu {

/// The work of a kernel launch on the host: the kernel's name says what it
/// does, the arguments of the launch what it does it with. Reads the arguments
/// now. `blocks`: of the grid.
///
/// Ends the process, with the kernel's name, for one that has no stand-in.
std::function<bool()> decode(const std::string& name,
                             void** arguments,
                             unsigned blocks);

/// One for each family of kernels; null for one with no stand-in.
std::function<bool()> decode_contiguous(const std::string& name,
                                        void** arguments);
std::function<bool()> decode_strided(const std::string& name, void** arguments);
std::function<bool()> decode_foreach_copy(const std::string& name,
                                          void** arguments,
                                          unsigned blocks);

}  // namespace fake_gpu
