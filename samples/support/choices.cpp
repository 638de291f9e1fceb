#include "samples/support/choices.h"

#include "samples/support/cifar10.h"
#include "samples/support/digits.h"
#include "samples/support/mnist.h"
#include "samples/support/resnet.h"
#include "samples/support/small_cnn.h"
#include "samples/support/synthetic.h"

namespace samples {

Dataset load_dataset(const DataOptions& options) {
  const std::filesystem::path folder = options.folder;
  switch (options.kind) {
    case DatasetKind::mnist:
      return load_mnist(folder);
    case DatasetKind::cifar10:
      return load_cifar10(folder);
    case DatasetKind::synthetic:
      return make_synthetic(options.shape, options.images);
    default:
      return load_digits(folder.empty() ? find_digits()
                                        : folder / "digits.csv");
  }
}

std::shared_ptr<Classifier> make_model(ModelKind kind, const Dataset& dataset) {
  const ImageShape shape = dataset.train.shape();
  if (kind == ModelKind::resnet18) {
    return std::make_shared<ResNet18>(shape.channels, dataset.classes);
  }
  return std::make_shared<SmallCnn>(shape, dataset.classes);
}

}  // namespace samples
