#pragma once

#include <functional>
#include <string>

namespace samples {

/// Runs `body` and turns an exception into one line on standard error,
/// "NAME (rank R): what happened", and exit code 1. The body leaves the process
/// group itself: after an error the others are told by this process's end.
///
/// Example:
/// @code
///   int main() { return samples::run_program("hello", [] { ... }); }
/// @endcode
int run_program(const std::string& name, const std::function<void()>& body);

}  // namespace samples
