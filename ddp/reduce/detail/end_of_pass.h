#pragma once

#include <functional>
#include <memory>

namespace ddp::detail {

/// Number of graph tasks around the one that runs on this thread: 0 for the
/// outermost, more for a backward pass inside a node or hook of another one.
/// Called in a backward pass.
int graph_task_depth();

/// Calls when a backward pass ends.
struct PassEnd {
  /// The outermost graph task ends. An exception leaves its `backward()`.
  std::function<void()> on_end;
  /// A nested graph task has ended on a thread that does not know the task
  /// around it: nested deeper than 60, or over several devices. The enclosing
  /// tasks go on, and `on_end` is not called for this registration.
  std::function<void()> on_lost;
};

/// Registers with the graph task that runs on this thread, and after its end
/// with the one around it. Several objects may register in a task; all are
/// called, also after an exception of one.
///
/// @returns an object that expires when the calls can no longer come, because
///   they have been made or an exception has left the task.
std::weak_ptr<void> at_end_of_pass(PassEnd end);

}  // namespace ddp::detail
