#pragma once

#include <vector_types.h>

// What compiled CUDA code calls to make a kernel known. CUDA declares it in a
// header for its compiler alone.
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
