#pragma once

#include <functional>

namespace ddp {

/// Runs the body of a program's main function and returns its exit code. When
/// an exception leaves it, this returns 1, as a Python program does, after
/// - the other ranks have been told what it says,
/// - it has been written to stderr, and
/// - into the file that TORCHELASTIC_ERROR_FILE names, for the report of the
///   launcher. ddprun and torchrun give each worker such a file.
///
/// Destructors of the body have run by then.
///
/// A program does well without it: from `init_process_group()` on, what nobody
/// catches is recorded in the same file before it ends the process
/// (std::terminate, SIGABRT). This adds the errors from before, and an exit
/// code that stands for an error, not for a crash.
///
/// The file is in torchrun's format: `{"message": {"message":
/// "std::runtime_error: no data", "extraInfo": {"py_callstack": ...,
/// "timestamp": "<seconds>"}}}`, at most 64 KiB, replaced in one step. Where
/// the variable is not set there is none.
///
/// Example:
/// @code
///   int main(int argc, char** argv) {
///     return ddp::record_errors([&] { return train(argc, argv); });
///   }
/// @endcode
///
/// Source: torch.distributed.elastic.multiprocessing.errors.record.
int record_errors(const std::function<int()>& body);

}  // namespace ddp
