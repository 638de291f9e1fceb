#include "samples/support/gather.h"

#include <ddp/collectives.h>
#include <ddp/process_group.h>

#include <cstring>

namespace samples {

// One rank's row and zeros of the others add up to that row.
torch::Tensor gather(const torch::Tensor& mine) {
  auto sizes = mine.sizes().vec();
  sizes.insert(sizes.begin(), ddp::world_size());
  auto rows = torch::zeros(sizes, mine.dtype());
  rows[ddp::rank()].copy_(mine);
  return ddp::reduce_tensor(rows, ddp::Reduction::sum);
}

std::vector<std::string> gather_text(const std::string& mine) {
  const auto sizes = gather(torch::tensor(static_cast<int64_t>(mine.size())));
  auto bytes = torch::zeros({sizes.max().item<int64_t>()}, torch::kUInt8);
  std::memcpy(bytes.mutable_data_ptr(), mine.data(), mine.size());
  const auto rows = gather(bytes);
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < ddp::world_size(); ++rank) {
    texts.emplace_back(static_cast<const char*>(rows[rank].const_data_ptr()),
                       static_cast<size_t>(sizes[rank].item<int64_t>()));
  }
  return texts;
}

}  // namespace samples
