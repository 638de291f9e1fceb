#include "dp/servers/detail/protocol_state.h"

namespace dp::detail {

std::string ProtocolState::accept(Op op) {
  const bool is_working =
      stage_ == Stage::idle || stage_ == Stage::has_parameters;
  switch (op) {
    case Op::pull:
      if (!is_working) {
        return "a pull after it had left";
      }
      stage_ = Stage::has_parameters;
      return "";
    case Op::push:
    case Op::drop:
      if (stage_ != Stage::has_parameters) {
        return op == Op::push ? "a push without a pull before it"
                              : "a drop without a pull before it";
      }
      stage_ = Stage::idle;
      return "";
    case Op::leave:
      if (!is_working) {
        return "a second leave";
      }
      stage_ = Stage::has_left;
      return "";
    case Op::last:
      if (stage_ != Stage::has_left) {
        return "a request for the last parameters before it had left";
      }
      stage_ = Stage::has_finished;
      return "";
    case Op::wait:
    case Op::failure:
      return "";
    case Op::parameters:
    case Op::received:
      break;
  }
  return "what a server sends";
}

}  // namespace dp::detail
