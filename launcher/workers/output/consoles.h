#pragma once

#include <optional>

#include "launcher/workers/output/console.h"

namespace launcher {

/// ddprun's stdout and stderr. Both are one Console if they go to the same
/// file, so that lines are not interleaved.
class Consoles {
 public:
  /// @param losses records lost output; must outlive this object
  Consoles(EventLoop& loop, DroppedOutput& losses)
      : out_(1, loop, losses), err_(std::in_place, 2, loop, losses) {
    if (err_->is_same_file(out_)) {
      err_.reset();
    }
  }

  Console& out() { return out_; }
  Console& err() { return err_ ? *err_ : out_; }

 private:
  Console out_;
  std::optional<Console> err_;
};

}  // namespace launcher
