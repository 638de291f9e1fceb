#include "dp/data_parallel/detail/replica_error.h"

#include <c10/util/Exception.h>

namespace dp::detail {
namespace {

c10::Error wrapped(const std::string& what, const std::string& where) {
  return {{__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
          what + " (" + where + ")"};
}

}  // namespace

void rethrow_from(const std::exception_ptr& error, const std::string& where) {
  try {
    std::rethrow_exception(error);
  } catch (c10::Error& caught) {
    caught.add_context(where);
    throw;
  } catch (const std::exception& caught) {
    std::throw_with_nested(wrapped(caught.what(), where));
  } catch (...) {
    std::throw_with_nested(wrapped("An exception of unknown type", where));
  }
}

}  // namespace dp::detail
