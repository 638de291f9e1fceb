#include "ddp/job/peers.h"

#include <cstdlib>

#include "ddp/job/monitored_backend.h"
#include "ddp/job/process_group.h"

namespace ddp::detail {

c10::intrusive_ptr<c10d::Backend> group_or_all(
    const c10::intrusive_ptr<c10d::Backend>& asked) {
  return asked || !is_initialized() ? asked : process_group();
}

c10::intrusive_ptr<c10d::Backend> peers(
    const c10::intrusive_ptr<c10d::Backend>& asked) {
  auto group = group_or_all(asked);
  return group && group->getSize() > 1 ? group : nullptr;
}

c10::intrusive_ptr<c10d::Backend> known_peers(
    const c10::intrusive_ptr<c10d::Backend>& asked, const char* object) {
  if (!asked && !is_initialized()) {
    const char* size = std::getenv("WORLD_SIZE");
    TORCH_CHECK(size == nullptr || std::atoi(size) <= 1,
                "Expected a process group for ",
                object,
                ", because WORLD_SIZE is ",
                size,
                ", but got none; call ddp::init_process_group() first, or "
                "give it the program's own group");
  }
  return peers(asked);
}

c10::intrusive_ptr<c10d::Backend> required_group(
    c10::intrusive_ptr<c10d::Backend> asked) {
  TORCH_CHECK(
      asked != nullptr,
      "Expected a group of ranks, but got null; give "
      "ddp::process_group(), or on the ranks of a smaller group that of "
      "ddp::new_group");
  return asked;
}

c10::Device device_for(const c10d::Backend& group, c10::Device wanted) {
  if (const auto* job = monitored_backend_of(group);
      job != nullptr && job->getBoundDeviceId()) {
    return job->is_connected(wanted) ? wanted : *job->getBoundDeviceId();
  }
  const bool takes_gpus_alone = group.getBackendName() == "nccl";
  return takes_gpus_alone && !wanted.is_cuda() ? local_device() : wanted;
}

}  // namespace ddp::detail
