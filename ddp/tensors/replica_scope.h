#pragma once

namespace ddp::detail {

/// While it lives, this thread runs the forward of one of several replicas that
/// this process has of a module, as the threads of dp::DataParallel do. The
/// others run at the same time and share the CPU's random generator and the
/// process groups.
class ReplicaScope {
 public:
  ReplicaScope();
  ~ReplicaScope();
  ReplicaScope(const ReplicaScope&) = delete;
  ReplicaScope& operator=(const ReplicaScope&) = delete;

  /// Whether one lives on this thread.
  static bool is_entered();
};

}  // namespace ddp::detail
