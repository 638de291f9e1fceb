#pragma once

#include <torch/types.h>

namespace samples {

/// CIFAR-10's usual augmentation: every image is cut out of itself with a
/// margin of `padding` zeros at a random place, and mirrored half of the time.
/// Draws from LibTorch's CPU generator, so that a checkpoint's RNG state covers
/// it.
///
/// @param images  [n, channels, height, width] on the CPU
/// @returns a new tensor of the same shape and dtype.
torch::Tensor crop_and_flip(const torch::Tensor& images, int64_t padding = 4);

}  // namespace samples
