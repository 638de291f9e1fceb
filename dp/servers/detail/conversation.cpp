#include "dp/servers/detail/conversation.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "dp/servers/detail/interval.h"
#include "dp/servers/detail/topology.h"

namespace dp::detail {
namespace {

/// Receives messages until one is not Op::wait and checks its operation.
Message answer_of(Link& link,
                  size_t server,
                  Op expected,
                  const OnWait& on_wait) {
  Message message = link.receive();
  for (; message.op == Op::wait; message = link.receive()) {
    on_wait();
  }
  if (message.op == Op::failure) {
    link.note_end();
    TORCH_CHECK(
        false, server_name(static_cast<int>(server)), " ended: ", message.text);
  }
  if (message.op != expected) {
    link.refuse("another answer than it was asked for");
  }
  return message;
}

}  // namespace

int64_t request_parameters(Link& link,
                           size_t server,
                           Op op,
                           const at::Tensor& parameters,
                           const OnWait& on_wait) {
  link.send({.op = op});
  // Receiving the pieces of one server may take longer than another server's
  // time-out.
  Interval sign_of_life(link.timeout() / 4);
  int64_t version = 0, begin = 0;
  do {
    version = answer_of(link, server, Op::parameters, on_wait).version;
    const int64_t size = std::min(kPieceBytes, parameters.numel() - begin);
    link.receive_payload(parameters.narrow(0, begin, size));
    begin += size;
    if (sign_of_life.has_passed()) {
      on_wait();
    }
  } while (begin < parameters.numel());
  return version;
}

void send_gradients(Link& link,
                    size_t server,
                    const Message& push,
                    const at::Tensor& gradients,
                    const OnWait& on_wait) {
  // Receive the answer before the flush, because the server sends signs of life
  // while it has no memory for the gradients.
  link.post(push, gradients);
  answer_of(link, server, Op::received, on_wait);
  link.flush();
}

}  // namespace dp::detail
