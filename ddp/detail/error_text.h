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

}  // namespace ddp::detail
