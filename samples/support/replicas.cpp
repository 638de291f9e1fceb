#include "samples/support/replicas.h"

namespace samples {

Score evaluate_here(ReplicatedClassifier& model,
                    const Images& images,
                    int64_t batch_size) {
  model->eval();
  // Each device gets its share of a batch straight from the loader.
  return evaluate_here(
      images,
      batch_size,
      model->output_device(),
      [&](const torch::Tensor& batch) { return model->forward(batch); });
}

}  // namespace samples
