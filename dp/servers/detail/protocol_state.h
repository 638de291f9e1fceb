#pragma once

#include <string>

#include "dp/servers/detail/message.h"

namespace dp::detail {

/// The messages that one worker may send next. A worker pulls, then pushes or
/// drops, and so on; it leaves once, and asks for the last parameters after
/// that. Pure.
class ProtocolState {
 public:
  /// Notes a message of the worker.
  /// @returns why it is out of turn, "" when it is not. Nothing is noted then.
  std::string accept(Op op);

 private:
  enum class Stage { idle, has_parameters, has_left, has_finished };

  Stage stage_ = Stage::idle;
};

}  // namespace dp::detail
