#include "dp/push_in_backward.h"

#include "dp/detail/parameter_server/parts/early_push.h"

namespace dp {

PushInBackwardGuard::PushInBackwardGuard(ParameterClient& client)
    : push_(client.early_push()) {
  push_->arm();
}

PushInBackwardGuard::~PushInBackwardGuard() {
  push_->disarm();
}

}  // namespace dp
