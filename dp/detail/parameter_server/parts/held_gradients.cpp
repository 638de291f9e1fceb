#include "dp/detail/parameter_server/parts/held_gradients.h"

#include "dp/detail/parameter_server/gradients.h"

namespace dp::detail {

at::Tensor HeldGradients::lend(const std::vector<at::Tensor>& parameters,
                               const Contents& contents) {
  const auto rest = memory_.defined()
                        ? memory_.narrow(0, used_, memory_.numel() - used_)
                        : at::Tensor();
  packets_.emplace_back(parameters, contents, rest);
  const auto& packet = packets_.back();
  const int64_t size = packet.flat().numel();
  if (packets_.size() == 1 && !packet.memory().is_same(rest)) {
    memory_ = packet.memory();
    used_ = size;
  } else if (packet.memory().is_same(rest)) {
    used_ += size;
  }
  size_ += size;
  return packet.flat();
}

std::vector<at::Tensor> HeldGradients::all(
    const std::vector<at::Tensor>& parameters) const {
  std::vector<at::Tensor> result(parameters.size());
  for (const auto& packet : packets_) {
    auto gradients = gradients_in(packet, parameters);
    for (size_t i = 0; i < result.size(); ++i) {
      if (packet.contents()[i] != kKept) {
        result[i] = std::move(gradients[i]);
      }
    }
  }
  return result;
}

int64_t HeldGradients::bytes() const {
  int64_t bytes = 0;
  for (const auto& packet : packets_) {
    bytes += packet.bytes();
  }
  return bytes;
}

}  // namespace dp::detail
