#include "dp/detail/parameter_server/conversation.h"

#include <utility>

#include <c10/util/Exception.h>

#include "dp/detail/parameter_server/topology.h"

namespace dp::detail {
namespace {

/// The next answer of a server that is none to wait.
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

GivenParameters request_parameters(Link& link,
                                   size_t server,
                                   Op op,
                                   const Rows& rows,
                                   const std::vector<at::Tensor>& parameters,
                                   const at::Tensor& memory,
                                   const OnWait& on_wait) {
  const auto contents = contents_of(rows);
  if (any_rows(rows)) {
    link.send({.op = op, .numbers = contents}, join_rows(rows));
  } else {
    link.send({.op = op});
  }
  const int64_t version =
      answer_of(link, server, Op::parameters, on_wait).version;
  GivenParameters given{Packet(parameters, contents, memory), version};
  link.receive_payload(given.parameters.flat());
  return given;
}

void send_gradients(Link& link,
                    size_t server,
                    const Message& push,
                    const at::Tensor& gradients,
                    const OnWait& on_wait) {
  link.send(push);
  answer_of(link, server, Op::go, on_wait);
  link.send_payload(gradients);
}

}  // namespace dp::detail
