#pragma once

#include <memory>

#include "samples/support/classifier.h"
#include "samples/support/images.h"
#include "samples/support/train_options.h"

namespace samples {

/// Loads the images that the options name.
/// @throws c10::Error when the folder or a file in it is not as it should be.
Dataset load_dataset(const DataOptions& options);

/// The network that the options name, for this data set, with parameters drawn
/// from LibTorch's generator.
std::shared_ptr<Classifier> make_model(ModelKind kind, const Dataset& dataset);

}  // namespace samples
