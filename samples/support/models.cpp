#include "samples/support/models.h"

#include <torch/nn/functional/pooling.h>
#include <torch/nn/modules/dropout.h>
#include <torch/types.h>

namespace samples {
namespace {

constexpr int64_t kSmallest = 6;

// Two unpadded 3x3 convolutions reduce each side by 4, and the pooling halves
// it.
int64_t features(const ImageShape& shape) {
  TORCH_CHECK(shape.height >= kSmallest && shape.width >= kSmallest,
              "Expected images of at least ",
              kSmallest,
              "x",
              kSmallest,
              " for the small CNN, but got ",
              shape.height,
              "x",
              shape.width,
              ".");
  return 64 * ((shape.height - 4) / 2) * ((shape.width - 4) / 2);
}

}  // namespace

SmallCnn::SmallCnn(const ImageShape& shape, int64_t classes)
    : conv1_(torch::nn::Conv2dOptions(shape.channels, 32, 3)),
      conv2_(torch::nn::Conv2dOptions(32, 64, 3)),
      dropout1_(0.25),
      dropout2_(0.5),
      fc1_(features(shape), 128),
      fc2_(128, classes) {
  register_module("conv1", conv1_);
  register_module("conv2", conv2_);
  register_module("dropout1", dropout1_);
  register_module("dropout2", dropout2_);
  register_module("fc1", fc1_);
  register_module("fc2", fc2_);
}

torch::Tensor SmallCnn::forward(const torch::Tensor& images) {
  auto x = torch::relu(conv1_(images));
  x = torch::relu(conv2_(x));
  x = dropout1_(torch::max_pool2d(x, 2)).flatten(1);
  return fc2_(dropout2_(torch::relu(fc1_(x))));
}

std::shared_ptr<Classifier> make_model(ModelKind kind, const Dataset& dataset) {
  const ImageShape shape = dataset.train.shape();
  if (kind == ModelKind::resnet18) {
    return std::make_shared<ResNet18>(shape.channels, dataset.classes);
  }
  return std::make_shared<SmallCnn>(shape, dataset.classes);
}

void remove_dropout(Classifier& network) {
  for (const auto& module : network.modules(false)) {
    if (auto* dropout = module->as<torch::nn::Dropout>()) {
      dropout->options.p(0);
    }
  }
}

}  // namespace samples
