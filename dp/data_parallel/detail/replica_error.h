#pragma once

#include <exception>
#include <string>

namespace dp::detail {

/// Rethrows `error` with `where` added to its text. A c10::Error keeps its
/// type. Any other exception is nested in a c10::Error.
[[noreturn]] void rethrow_from(const std::exception_ptr& error,
                               const std::string& where);

}  // namespace dp::detail
