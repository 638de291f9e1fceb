#pragma once

#include <optional>

#include "launcher/workers/output/console.h"

namespace launcher {

/// ddprun's stdout and stderr. Both are one Console if they go to the same
/// file, so that lines are not interleaved. Output written during a round of
/// the event loop is flushed at the end of the round.
class Consoles {
 public:
  /// @param losses records lost output; must outlive this object
  /// @param logs writes to regular files; must outlive this object
  Consoles(EventLoop& loop, DroppedOutput& losses, LogWriter& logs)
      : loop_(loop),
        losses_(losses),
        out_(1, loop, losses, logs),
        err_(std::in_place, 2, loop, losses, logs) {
    if (err_->is_same_file(out_)) {
      err_.reset();
    }
    rounds_ = loop_.watch_rounds([this] { flush(); });
  }
  ~Consoles() { loop_.unwatch(rounds_); }
  Consoles(const Consoles&) = delete;
  Consoles& operator=(const Consoles&) = delete;

  Console& out() { return out_; }
  Console& err() { return err_ ? *err_ : out_; }
  DroppedOutput& losses() { return losses_; }

  void flush() {
    out_.flush();
    err().flush();
  }
  bool are_drained() { return out_.is_drained() && err().is_drained(); }

 private:
  EventLoop& loop_;
  DroppedOutput& losses_;
  EventLoop::Token rounds_ = 0;
  Console out_;
  std::optional<Console> err_;
};

}  // namespace launcher
