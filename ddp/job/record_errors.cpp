#include "ddp/job/record_errors.h"

#include <cstdio>
#include <exception>

#include "ddp/job/detail/uncaught.h"

namespace ddp {

int record_errors(const std::function<int()>& body) {
  try {
    return body();
  } catch (...) {
    const auto error = std::current_exception();
    detail::record_error(error, "");
    std::fprintf(stderr, "%s\n", detail::describe_error(error).c_str());
    return 1;
  }
}

}  // namespace ddp
