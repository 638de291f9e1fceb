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

}  // namespace dp::detail
