#pragma once

#include <string>
#include <system_error>

namespace dp::detail {

/// Returns the error text for a thread that could not be started, with advice
/// on the limits to check.
/// @param whose  owner of the thread, for example "replica 1 of 3".
inline std::string thread_error(const std::string& whose,
                                const std::system_error& error) {
  return "Expected to start a thread for " + whose + ", but got \"" +
         error.code().message() +
         "\"; see ulimit -u and -v, and the limits of the container";
}

}  // namespace dp::detail
