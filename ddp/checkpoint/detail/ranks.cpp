#include "ddp/checkpoint/detail/ranks.h"

#include <utility>

#include "ddp/job/peers.h"
#include "ddp/job/text_collectives.h"

namespace ddp::detail {

Ranks::Ranks(const c10::intrusive_ptr<c10d::Backend>& group)
    : group_(peers(group)) {}

size_t Ranks::rank() const {
  return group_ ? static_cast<size_t>(group_->getRank()) : 0;
}

size_t Ranks::size() const {
  return group_ ? static_cast<size_t>(group_->getSize()) : 1;
}

std::vector<std::string> Ranks::gather(const std::string& mine) const {
  return group_ ? all_gather_text(*group_, device_for(*group_, c10::kCPU), mine)
                : std::vector{mine};
}

std::vector<std::string> Ranks::gather_on_first(const std::string& mine) const {
  std::vector<std::string> texts;
  for (size_t owner = 0; owner < size(); ++owner) {
    auto text = owner == rank() ? mine : "";
    if (group_) {
      text = broadcast_text(*group_,
                            device_for(*group_, c10::kCPU),
                            text,
                            static_cast<int>(owner));
    }
    if (rank() == 0) {
      texts.push_back(std::move(text));
    }
  }
  return texts;
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
    // The slower rank has ended; report this rank's error.
  }
  TORCH_CHECK(false, error);
}

}  // namespace ddp::detail
