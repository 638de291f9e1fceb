#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/detail/parameter_server/link.h"
#include "dp/detail/parameter_server/packet.h"

namespace dp::detail {

/// Called when an answer takes longer.
using OnWait = std::function<void()>;

// What a worker and one server say to each other. Each throws c10::Error when
// the server is gone or says why it has ended, which the link then notes.

struct GivenParameters {
  Packet parameters;
  int64_t version;
};

/// Asks for parameters and receives them.
/// @param op  Op::pull or Op::last.
/// @param rows  of the server's parameters, if not all.
/// @param memory  is taken where it is large enough.
GivenParameters request_parameters(Link& link,
                                   size_t server,
                                   Op op,
                                   const Rows& rows,
                                   const std::vector<at::Tensor>& parameters,
                                   const at::Tensor& memory,
                                   const OnWait& on_wait);

/// Sends gradients when there is memory for them.
/// @param push  what they are; or a part of a push.
void send_gradients(Link& link,
                    size_t server,
                    const Message& push,
                    const at::Tensor& gradients,
                    const OnWait& on_wait);

}  // namespace dp::detail
