#pragma once

namespace fake_gpu {

/// Loads the library with LibTorch's operators, which lies beside this one, if
/// the process has LibTorch. Not preloaded, as it would take LibTorch along
/// into programs such as ddprun. The first look for devices calls it, which
/// comes before any tensor on one.
void load_operators();

}  // namespace fake_gpu
