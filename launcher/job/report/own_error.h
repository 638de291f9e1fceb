#pragma once

#include <string>

#include "launcher/job/report/report.h"

namespace launcher {

/// What ddprun writes into its own error file when a job has ended so, for the
/// launcher that started it: the error file of the worker that failed first,
/// with how that one ended; where it has left none, the first line of the
/// report as message and the rest as what it came from. Empty when all is well.
/// Pure.
///
/// @param report text and exit code, of this result
std::string own_error(const AttemptResult& result, const Report& report);

}  // namespace launcher
