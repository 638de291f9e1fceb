#include "samples/support/parameter_hash.h"

#include <torch/types.h>

namespace samples {

uint64_t parameter_hash(const torch::nn::Module& module) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const auto& parameter : module.parameters()) {
    const auto values = parameter.detach().cpu().contiguous();
    const auto* bytes = static_cast<const uint8_t*>(values.const_data_ptr());
    for (size_t i = 0; i < values.nbytes(); ++i) {
      hash = (hash ^ bytes[i]) * 0x100000001b3;
    }
  }
  return hash;
}

}  // namespace samples
