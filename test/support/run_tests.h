#pragma once

#include <string>

namespace ddp::test {

/// Runs Catch2 and returns the exit code of the program. A test that exceeds
/// the time limit ends its program, and Catch2 names the test.
///
/// @param prefix  added before each filter of the command line, for example
///   "~[real]"
int run_tests(int argc, char** argv, const std::string& prefix = "");

}  // namespace ddp::test
