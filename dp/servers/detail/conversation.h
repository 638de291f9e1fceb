#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "dp/servers/detail/link.h"

namespace dp::detail {

/// Called repeatedly while an answer is outstanding.
using OnWait = std::function<void()>;

// Requests of a worker to one server. Each throws c10::Error if the server is
// lost or reports why it has ended. The link records a reported end
// (`note_end`).

/// Requests parameters and receives them into `parameters`.
/// @param op  Op::pull or Op::last.
/// @returns the version of the parameters.
int64_t request_parameters(Link& link,
                           size_t server,
                           Op op,
                           const at::Tensor& parameters,
                           const OnWait& on_wait);

/// Sends gradients. Returns when the server has received them.
void send_gradients(Link& link,
                    size_t server,
                    const Message& push,
                    const at::Tensor& gradients,
                    const OnWait& on_wait);

}  // namespace dp::detail
