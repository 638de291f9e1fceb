#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace ddp::detail {

/// What an exception says, without a backtrace. `error` is not null.
inline std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& caught) {
    return caught.what_without_backtrace();
  } catch (const std::exception& caught) {
    return caught.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace ddp::detail
