#include "ddp/detail/checkpoint/ranks.h"

#include "ddp/detail/collectives/text_collectives.h"
#include "ddp/process_group.h"

namespace ddp::detail {

Ranks::Ranks(const c10::intrusive_ptr<c10d::Backend>& group)
    : group_(group || !is_initialized() ? group : ddp::process_group()) {}

size_t Ranks::rank() const {
  return group_ ? static_cast<size_t>(group_->getRank()) : 0;
}

size_t Ranks::size() const {
  return group_ ? static_cast<size_t>(group_->getSize()) : 1;
}

std::vector<std::string> Ranks::gather(const std::string& mine) const {
  if (size() == 1) {
    return {mine};
  }
  const auto device = group_->getBackendName() == "nccl"
                          ? local_device()
                          : c10::Device(c10::kCPU);
  return all_gather_text(*group_, device, mine);
}

std::string Ranks::first_of(const std::vector<std::string>& errors) const {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) {
      return size() > 1 ? "rank " + std::to_string(rank) + ": " + errors[rank]
                        : errors[rank];
    }
  }
  return "";
}

void Ranks::fail(const std::string& error) const {
  try {
    gather("");
  } catch (const std::exception&) {
    // The slower rank is gone itself; the error to report is ours.
  }
  TORCH_CHECK(false, error);
}

}  // namespace ddp::detail
