#pragma once

#include <string>

namespace fake_gpu {

/// Registers a kernel.
/// @param host  address by which compiled code launches the kernel.
/// @param mangled_name  is kept; a string of the program.
void register_kernel(const void* host, const char* mangled_name);

/// Returns the C++ name of a kernel with its template arguments. Ends the
/// process if the address was not registered. The reference stays valid.
const std::string& kernel_name(const void* host);

}  // namespace fake_gpu
