#pragma once

#include <torch/types.h>

namespace samples {

/// Applies the usual augmentation for CIFAR-10: pads every image with `padding`
/// zeros on each side, crops the original size at a random position, and
/// mirrors half of the images. Draws from LibTorch's CPU generator, so the RNG
/// state in a checkpoint covers the augmentation.
///
/// @param images  [n, channels, height, width] on the CPU
/// @returns a new tensor of the same shape and dtype.
torch::Tensor crop_and_flip(const torch::Tensor& images, int64_t padding = 4);

}  // namespace samples
