#pragma once

#include <exception>
#include <string>

namespace ddp::detail {

/// Returns the exception's type and text: "std::runtime_error: no data".
/// @param error  not null.
std::string describe_error(const std::exception_ptr& error);

/// Reports an exception that is about to end this process: to the other ranks,
/// and to the launcher's error file if there is one.
///
/// @param error  not null.
/// @param where  the call stack of the exception; may be empty.
void record_error(const std::exception_ptr& error,
                  const std::string& where) noexcept;

/// Installs a terminate handler, once. The handler records the uncaught
/// exception and flushes stdout; the previous handler runs next. Thread-safe.
void install_terminate_handler();

}  // namespace ddp::detail
