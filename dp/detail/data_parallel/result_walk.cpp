#include "dp/detail/data_parallel/result_walk.h"

#include <c10/util/Exception.h>

namespace dp::detail {

void refuse(const Path& path,
            const char* what,
            const std::string& first,
            const std::string& other,
            size_t part) {
  TORCH_CHECK(false,
              "Expected replicas to return ",
              what,
              " alike",
              path.empty() ? "" : " in result",
              path,
              ", but got ",
              first,
              " first and ",
              other,
              " from part ",
              part);
}

bool is_defined(const ResultTensor& result) {
  expect_alike(
      result.of_parts,
      result.path,
      "tensors",
      [](const at::Tensor& tensor) { return tensor.defined(); },
      [](bool defined) { return defined ? "one" : "an undefined one"; });
  return result.of_parts.front()->defined();
}

}  // namespace dp::detail
