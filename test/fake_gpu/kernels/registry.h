#pragma once

#include <string>

namespace fake_gpu {

/// `host` is the address by which compiled code launches the kernel. Keeps
/// `mangled_name`, which is part of the program.
void register_kernel(const void* host, const char* mangled_name);

/// As in C++, with template arguments. Ends the process for an address that was
/// not registered. The reference stays valid.
const std::string& kernel_name(const void* host);

}  // namespace fake_gpu
