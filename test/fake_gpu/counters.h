#pragma once

#include "test/fake_gpu/control.h"

namespace fake_gpu {

/// Increments a counter, for example `count(&Counts::kernels)`. Any thread.
void count(uint64_t Counts::*what);

}  // namespace fake_gpu

// Functions that control.h finds by name.
extern "C" {
void fake_gpu_counts(fake_gpu::Counts* result);
void fake_gpu_reset_counts();
}
