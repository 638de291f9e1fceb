#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "ddp/amp/autocast.h"
#include "ddp/detail/amp/parameter_casts.h"

namespace ddp::detail {

/// What a computation depends on beside its arguments and its parameters: the
/// default generators, autocast and the dtype that parameters are cast to.
class ReplayState {
 public:
  /// As it is now.
  /// @param near  tensors on the devices whose generators may be asked; the
  ///   CPU's always is.
  explicit ReplayState(const std::vector<at::Tensor>& near);

  /// While it lives, the state is that one; then what it was before. Narrow
  /// copies of parameters are not shared with what is outside.
  class Scope;

 private:
  struct Generator {
    c10::Device device;
    at::Tensor state;
  };
  struct Autocast {
    c10::DeviceType device_type;
    bool is_enabled;
    c10::ScalarType dtype;
  };

  std::vector<Generator> generators_;
  std::vector<Autocast> autocasts_;
  std::vector<ParameterCastsPtr> casts_ = CastScope::active();
};

class ReplayState::Scope {
 public:
  explicit Scope(const ReplayState& state);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::vector<Generator> before_;
  std::vector<std::unique_ptr<AutocastGuard>> guards_;
  std::optional<CastScope> casts_;
};

/// While it lives, a segment's own computation runs on this thread: casts of
/// parameters are made for it alone, since they are a part of its graph.
class SegmentScope {
 public:
  SegmentScope();
  ~SegmentScope();
  SegmentScope(const SegmentScope&) = delete;
  SegmentScope& operator=(const SegmentScope&) = delete;

  /// Whether one lives on this thread.
  static bool is_entered();

 private:
  bool caches_casts_;
  std::optional<CastScope> casts_;
};

}  // namespace ddp::detail
