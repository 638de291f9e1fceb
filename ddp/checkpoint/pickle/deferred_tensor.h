#pragma once

#include <functional>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// A run of a tensor's elements in memory.
struct TensorRun {
  at::Tensor elements;  ///< of one dimension
  int64_t first = 0;    ///< number of elements before them
};

/// A tensor that is read when its bytes are written to a file, so that a file
/// larger than the free memory can be written. In a value it is a capsule.
class DeferredTensor : public torch::CustomClassHolder {
 public:
  /// @param like  has the sizes, strides and dtype, and no memory: on the meta
  ///   device.
  /// @param read  returns the elements on the CPU in the order of memory. May
  ///   be collective.
  /// @param part  the elements of this rank, if each rank has some.
  DeferredTensor(at::Tensor like,
                 std::function<at::Tensor()> read,
                 TensorRun part = {});

  const at::Tensor& like() const { return like_; }
  const TensorRun& part() const { return part_; }
  bool is_read() const { return read_ == nullptr; }
  /// Calls the function, the first time only.
  at::Tensor read();

 private:
  at::Tensor like_;
  std::function<at::Tensor()> read_;
  TensorRun part_;
};

/// Returns null for a value that is no DeferredTensor.
c10::intrusive_ptr<DeferredTensor> as_deferred(const c10::IValue& value);

/// Reads and drops the DeferredTensors of a state that have not been read yet,
/// in the order in which `write_torch_file` reads them. If reading is
/// collective, a rank that writes no file takes part in this way.
void read_rest(const c10::IValue& state);

}  // namespace ddp::detail
