#pragma once

#include "samples/support/images.h"

namespace samples {

/// Random images with random labels, for speed measurements only: there is
/// nothing to learn in them. The same on every rank and at every run.
///
/// @param count  images to train on; a tenth as many, at least one, to test on
Dataset make_synthetic(const ImageShape& shape, int64_t count);

}  // namespace samples
