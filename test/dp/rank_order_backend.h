#pragma once

#include <c10/util/Exception.h>

#include "test/support/done_work.h"
#include "test/support/forwarding_backend.h"

namespace dp::test {

/// Forwards to another backend, except for all-reduces, which add in rank
/// order, independent of an element's place in its bucket.
class RankOrderBackend : public ddp::test::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  /// Blocks until the all-reduce is complete.
  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override {
    TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM);
    auto& tensor = tensors.at(0);
    TensorLists terms(1);
    for (int rank = 0; rank < getSize(); ++rank) {
      terms[0].push_back(at::empty_like(tensor));
    }
    inner().allgather(terms, tensors)->wait();
    tensor.copy_(terms[0][0]);
    for (size_t rank = 1; rank < terms[0].size(); ++rank) {
      tensor.add_(terms[0][rank]);
    }
    return c10::make_intrusive<ddp::test::DoneWork>(tensor);
  }
};

}  // namespace dp::test
