#pragma once

#include <string>

namespace ddp::test {

/// Runs Catch2 and returns the exit code of the program. A test that hangs ends
/// its program after a time, and Catch2 then says which it was.
///
/// @param prefix comes before each filter of the command line, such as
/// "~[real]"
int run_tests(int argc, char** argv, const std::string& prefix = "");

}  // namespace ddp::test
