#include "ddp/tensors/overlap.h"

#include <algorithm>
#include <tuple>

namespace ddp::detail {

at::Tensor find_overlap(const std::vector<at::Tensor>& tensors) {
  using Range = std::tuple<const char*, const char*, const at::Tensor*>;
  std::vector<Range> ranges;
  for (const auto& tensor : tensors) {
    if (tensor.numel() > 0) {
      int64_t last = 0;
      for (int64_t i = 0; i < tensor.dim(); ++i) {
        last += (tensor.size(i) - 1) * tensor.stride(i);
      }
      const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
      ranges.emplace_back(
          begin, begin + (last + 1) * tensor.element_size(), &tensor);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  const char* end = nullptr;
  for (const auto& [begin, its_end, tensor] : ranges) {
    if (begin < end) {
      return *tensor;
    }
    end = its_end;
  }
  return {};
}

void expect_no_overlap(const std::vector<at::Tensor>& parameters) {
  const auto overlap = find_overlap(parameters);
  TORCH_CHECK(!overlap.defined(),
              "Expected each parameter once, and in memory of its own, because "
              "ranks step them by parts, but one of shape ",
              overlap.defined() ? overlap.sizes() : at::IntArrayRef(),
              " comes twice or shares memory with another one; take the "
              "parameters of ddp::DistributedDataParallel, which lists shared "
              "ones once, and step views of one memory by a plain optimizer");
}

}  // namespace ddp::detail
