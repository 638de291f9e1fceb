#include "samples/support/replicas.h"

namespace samples {

Score evaluate_here(ReplicatedClassifier& model,
                    const Images& images,
                    int64_t batch_size) {
  model->eval();
  // The wrapper copies each chunk of the loaded batch directly to its device.
  return evaluate_here(
      images,
      batch_size,
      model->output_device(),
      [&](const torch::Tensor& batch) { return model->forward(batch); });
}

}  // namespace samples
