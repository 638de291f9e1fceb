#pragma once

#include <functional>

namespace ddp {

/// Runs the body of a program's main function and returns its exit code. If an
/// exception of any type leaves the body, returns 1, as a Python program does,
/// after it has
/// - reported the exception to the other ranks,
/// - written it to stderr, and
/// - written it to the file named by TORCHELASTIC_ERROR_FILE, for the
///   launcher's report. ddprun and torchrun set this variable for each worker.
///
/// The destructors of the body's objects run before this report. If one of them
/// has destroyed the process group, the other ranks learn that this rank has
/// thrown, but not the text. A file that cannot be written is reported to
/// stderr. Exceptions of other threads are not caught. A code that the body
/// returns is passed on without a report.
///
/// Programs can do without this function: from `init_process_group()` on, an
/// uncaught exception is recorded in the same file before it ends the process
/// (std::terminate, SIGABRT), unless the program is a guest
/// (`ProcessGroupOptions::guest`). With this function errors from before that
/// call are recorded, too, and the exit code is 1 instead of SIGABRT.
///
/// The file has torchrun's format: `{"message": {"message":
/// "std::runtime_error: no data", "extraInfo": {"py_callstack": ...,
/// "timestamp": "<seconds>"}}}`, at most 64 KiB, replaced atomically. If the
/// variable is not set, no file is written.
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

namespace detail {

/// Installs a terminate handler, once. The handler reports an uncaught
/// exception as `record_errors` does and flushes stdout; the previous handler
/// runs next. Thread-safe.
void install_terminate_handler();

}  // namespace detail

}  // namespace ddp
