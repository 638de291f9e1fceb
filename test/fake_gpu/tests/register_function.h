#pragma once

#include <vector_types.h>

// Function with which compiled CUDA code registers a kernel. CUDA declares it
// only in a header for its own compiler.
extern "C" void __cudaRegisterFunction(void**,
                                       const char*,
                                       char*,
                                       const char*,
                                       int,
                                       uint3*,
                                       uint3*,
                                       dim3*,
                                       dim3*,
                                       int*);
