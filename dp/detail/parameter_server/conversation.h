#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dp/detail/parameter_server/link.h"
#include "dp/detail/parameter_server/packet.h"

namespace dp::detail {

/// Called when an answer takes longer.
using OnWait = std::function<void()>;

// What a worker and one server say to each other. Each throws c10::Error when
// the server is gone; when it says why it has ended, the link is let go, too.

struct GivenParameters {
  Packet parameters;
  int64_t version;
};

/// Asks for parameters and receives them.
/// @param op  Op::pull or Op::last.
/// @param rows  of the server's parameters, if not all.
/// @param memory  is taken where it is large enough.
GivenParameters request_parameters(std::unique_ptr<Link>& link,
                                   size_t server,
                                   Op op,
                                   const Rows& rows,
                                   const std::vector<at::Tensor>& parameters,
                                   const at::Tensor& memory,
                                   const OnWait& on_wait);

/// Sends gradients when there is memory for them.
void send_gradients(std::unique_ptr<Link>& link,
                    size_t server,
                    const Packet& gradients,
                    double loss,
                    const OnWait& on_wait);

}  // namespace dp::detail
