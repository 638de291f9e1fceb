#pragma once

#include <string>

#include "dp/servers/detail/message.h"

namespace dp::detail {

/// State machine of the messages that one worker may send: the worker
/// alternates between `pull` and `push` or `drop`, sends `leave` once, and then
/// requests the last parameters.
class ProtocolState {
 public:
  /// Checks a message of the worker and advances the state.
  /// @returns why the message is out of order, or "" if it is in order. The
  ///   state does not change on an error.
  std::string accept(Op op);

 private:
  enum class Stage { idle, has_parameters, has_left, has_finished };

  Stage stage_ = Stage::idle;
};

}  // namespace dp::detail
