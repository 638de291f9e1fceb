#pragma once

#include <functional>
#include <string>

namespace fake_gpu {

/// Returns the host implementation of a kernel launch. The kernel's name
/// determines the computation; the launch arguments determine its operands and
/// are read in this call.
/// @param blocks  number of blocks of the grid.
///
/// Ends the process with the kernel's name if the kernel is not supported.
std::function<bool()> decode(const std::string& name,
                             void** arguments,
                             unsigned blocks);

/// Decoders of the kernel families. Return null for an unsupported kernel.
std::function<bool()> decode_contiguous(const std::string& name,
                                        void** arguments);
std::function<bool()> decode_strided(const std::string& name, void** arguments);
std::function<bool()> decode_foreach_copy(const std::string& name,
                                          void** arguments,
                                          unsigned blocks);

}  // namespace fake_gpu
