#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/job/named_parameter.h"
#include "ddp/tensors/autograd_nodes.h"

namespace ddp::detail {

/// Calls a listener each time the gradient of a parameter has been accumulated
/// into its `.grad`.
///
/// The hook belongs to the parameter (LibTorch's post-accumulate-grad hook), so
/// no load and no conversion loses it. A parameter has one hook of this class.
/// The object that claimed the parameter last owns it; listeners of other
/// objects are not called.
///
/// Thread contract: the listener runs on the thread that runs the backward pass
/// of the parameter's device.
class GradHooks {
 public:
  /// @param is_untouched  false if a hook of the program, which runs before,
  ///   has changed the parameter or reset its `.grad`.
  using Listener = std::function<void(size_t index, bool is_untouched)>;

  /// Claims the parameters, which are leaves that require a gradient.
  GradHooks(std::vector<NamedParameter> parameters, Listener listener);
  ~GradHooks();
  GradHooks(const GradHooks&) = delete;
  GradHooks& operator=(const GradHooks&) = delete;

  /// Claims the parameters again, before a forward that uses them.
  /// @throws c10::Error, with the parameter's name, if the shape, strides,
  ///   dtype or device of a parameter that trains have changed since the
  ///   constructor.
  void claim();

  /// Returns false if the program has replaced the parameter's hook since the
  /// parameters were claimed.
  bool is_installed(size_t index) const;

  /// Returns the first parameter that trains and that another living object
  /// owns, or null.
  const NamedParameter* first_foreign() const;

  /// Records that a gradient has come in a pass of this rank alone. Objects
  /// that share the parameter see the record.
  void record_local(size_t index);
  /// Returns whether the parameter's `.grad` has a gradient of this kind.
  bool has_local(size_t index) const;
  /// Ends the records: the gradients have been averaged.
  void clear_local();

  /// Sets whether a graph of an earlier forward still needs this object. If it
  /// is destroyed then, its hooks throw c10::Error until another object claims
  /// the parameters. Otherwise its hooks do nothing after its end.
  void needed_by_graph(bool is_needed) { is_needed_ = is_needed; }

 private:
  struct Hook;
  struct Link;
  struct Hooked {
    NamedParameter parameter;
    at::Tensor like;  ///< shape, strides and dtype when wrapped; no memory
    c10::Device device;
    std::shared_ptr<Link> link;  ///< shared with the parameter's hook
    const void* hook = nullptr;
    /// On the CPU autograd's node of the parameter, kept for the next passes.
    NodePtr accumulator{};
  };

  void check_unchanged(const Hooked& hooked) const;
  void install(Hooked& hooked) const;

  std::shared_ptr<Listener> listener_;
  std::vector<Hooked> hooked_;
  bool is_needed_ = true;
};

/// Number of graph tasks around the one that runs on this thread: 0 for the
/// outermost, more for a backward pass inside a node or hook of another one.
/// Called in a backward pass.
int graph_task_depth();

/// Functions to call when a backward pass ends.
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
/// @returns an object that expires after the calls, or when no calls can follow
///   because an exception has left the task.
std::weak_ptr<void> at_end_of_pass(PassEnd end);

}  // namespace ddp::detail
