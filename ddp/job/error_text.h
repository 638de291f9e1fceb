#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace ddp::detail {

/// Returns the text of an exception, without a backtrace.
inline std::string text_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace()
                             : error.what();
}

/// As above, for any exception; `error` must not be null.
inline std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return text_of(caught);
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// Runs `work` and returns its result. Any error becomes a c10::Error with the
/// attempt and the reason: "Cannot load a.pt: Permission denied".
template <class Work>
auto explain(const std::string& attempt, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    TORCH_CHECK(false, attempt, ": ", text_of(error));
  }
}

}  // namespace ddp::detail
