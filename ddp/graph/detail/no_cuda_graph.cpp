#include <c10/util/Exception.h>

#include "ddp/graph/detail/cuda_graph.h"

namespace ddp::detail {

std::unique_ptr<CudaGraph> make_cuda_graph() {
  TORCH_CHECK(false,
              "Expected a LibTorch with CUDA to record a graph, but this "
              "program was built with a CPU-only one");
}

}  // namespace ddp::detail
