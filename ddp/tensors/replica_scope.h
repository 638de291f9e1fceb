#pragma once

namespace ddp::detail {

/// In its scope, this thread runs the forward of one of several replicas of a
/// module in this process, as the threads of dp::DataParallel do. The other
/// replicas run at the same time and share the CPU's random generator and the
/// process groups.
class ReplicaScope {
 public:
  ReplicaScope() { ++entered_; }
  ~ReplicaScope() { --entered_; }
  ReplicaScope(const ReplicaScope&) = delete;
  ReplicaScope& operator=(const ReplicaScope&) = delete;

  /// Returns true if this thread is inside a scope.
  static bool is_entered() { return entered_ > 0; }

 private:
  inline static thread_local int entered_ = 0;
};

}  // namespace ddp::detail
