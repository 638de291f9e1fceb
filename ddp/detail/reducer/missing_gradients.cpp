#include "ddp/detail/reducer/missing_gradients.h"

#include <sstream>

#include <ATen/ops/zeros.h>

#include "ddp/detail/text_collectives.h"
#include "ddp/detail/wait.h"

namespace ddp::detail {

std::vector<std::string> exchange_missing(c10d::Backend& group,
                                          c10::Device device,
                                          const std::string& mine) {
  if (device.is_cpu()) {
    return all_gather_text(group, device, mine);
  }
  std::vector<std::string> lists(group.getSize());
  lists[group.getRank()] = mine;
  return lists;
}

std::string missing_gradients_error(const std::vector<std::string>& lists) {
  std::ostringstream who;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    if (!lists[rank].empty()) {
      who << " on rank " << rank << ": " << lists[rank] << ";";
    }
  }
  return "Expected every parameter to get a gradient in this backward pass, "
         "but "
         "these got none:" +
         (who.tellp() > 0 ? who.str() : " (see the other ranks' errors);") +
         " let them take part in the loss, freeze them with "
         "requires_grad_(false), or set find_unused_parameters(true)";
}

std::vector<bool> all_reduce_used(c10d::Backend& group,
                                  c10::Device device,
                                  const std::vector<bool>& used) {
  auto counts = at::zeros({static_cast<int64_t>(used.size())}, at::kInt);
  std::copy(used.begin(), used.end(), counts.mutable_data_ptr<int32_t>());
  std::vector<at::Tensor> shared{counts.to(device)};
  wait(group.allreduce(shared), group, "all-reduce of the used map");
  counts = shared[0].cpu();
  const auto* data = counts.const_data_ptr<int32_t>();
  return std::vector<bool>(data, data + used.size());
}

}  // namespace ddp::detail
