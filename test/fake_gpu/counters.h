#pragma once

#include "test/fake_gpu/control.h"

namespace fake_gpu {

/// Adds one: `count(&Counts::kernels)`. Any thread.
void count(uint64_t Counts::*what);

}  // namespace fake_gpu

// What control.h looks for by name.
extern "C" {
void fake_gpu_counts(fake_gpu::Counts* result);
void fake_gpu_reset_counts();
}
