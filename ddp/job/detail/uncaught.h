#pragma once

#include <exception>
#include <string>

namespace ddp::detail {

/// "std::runtime_error: no data". `error` is not null.
std::string describe_error(const std::exception_ptr& error);

/// An exception is to end this process: tells the other ranks, and the launcher
/// by its error file, if there is one.
///
/// @param error is not null
/// @param where the stack that it came through; may be empty
void record_error(const std::exception_ptr& error,
                  const std::string& where) noexcept;

/// Installs a terminate handler, once, from any thread. It records the uncaught
/// exception and flushes stdout; the handler that was there before runs next.
void install_terminate_handler();

}  // namespace ddp::detail
