#pragma once

#include <string>
#include <system_error>

namespace dp::detail {

/// Returns the error text for a thread that could not be started, with advice
/// on the limits to check.
/// @param owner  of the thread, for example "replica 1 of 3".
inline std::string thread_error(const std::string& owner,
                                const std::system_error& error) {
  return "Expected to start a thread for " + owner + ", but got \"" +
         error.code().message() +
         "\"; see ulimit -u and -v, and the limits of the container";
}

}  // namespace dp::detail
