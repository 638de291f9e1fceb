#pragma once

namespace fake_gpu {

/// Loads the library with LibTorch's operators, which is beside this library,
/// if the process has LibTorch. The library is not preloaded, because it would
/// load LibTorch into programs such as ddprun. The first query for devices,
/// which precedes any tensor on a device, calls this function.
void load_operators();

}  // namespace fake_gpu
