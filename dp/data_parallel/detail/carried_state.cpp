#include "dp/data_parallel/detail/carried_state.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace dp::detail {

CarriedState::CarriedState(const std::vector<c10::Device>& devices)
    : autocast_cache_(at::autocast::is_autocast_cache_enabled()) {
  for (const auto device : devices) {
    streams_.push_back(device.is_cpu()
                           ? std::nullopt
                           : std::optional<c10::Stream>(
                                 c10::impl::VirtualGuardImpl(device.type())
                                     .getStream(device)));
  }
}

CarriedState::Guard::Guard(const CarriedState& state, size_t device)
    : guard_(state.state_),
      autocast_cache_(at::autocast::is_autocast_cache_enabled()),
      stream_(state.streams_[device]) {
  at::autocast::set_autocast_cache_enabled(state.autocast_cache_);
}

CarriedState::Guard::~Guard() {
  at::autocast::set_autocast_cache_enabled(autocast_cache_);
}

}  // namespace dp::detail
