#include "ddp/wrap/detail/default_exchange.h"

#include "ddp/exchanges/shared_memory_all_reduce.h"
#include "ddp/job/monitored_backend.h"

namespace ddp::detail {

bool is_gloo_group_of_job(const c10d::Backend& group) {
  return dynamic_cast<const MonitoredBackend*>(&group) != nullptr &&
         group.getBackendName() == "gloo";
}

std::shared_ptr<Exchange> default_exchange(
    const c10::intrusive_ptr<c10d::Backend>& group) {
  return is_gloo_group_of_job(*group)
             ? std::make_shared<SharedMemoryAllReduce>(group)
             : nullptr;
}

}  // namespace ddp::detail
