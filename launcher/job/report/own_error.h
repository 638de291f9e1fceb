#pragma once

#include <string>

#include "launcher/job/report/report.h"

namespace launcher {

/// Returns the text of ddprun's own error file, for the launcher that started
/// ddprun. This is the error file of the worker that failed first, with its
/// exit status added. If that worker left no error file, the first line of the
/// report is the message and the whole report is the call stack. Empty if the
/// exit code is 0. Pure function.
///
/// @param report text and exit code, of this result
std::string own_error(const AttemptResult& result, const Report& report);

}  // namespace launcher
