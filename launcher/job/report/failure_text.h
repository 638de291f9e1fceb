#pragma once

#include <chrono>
#include <string>

#include "launcher/job/report/report.h"

// What a report says of an attempt's workers. Pure.
namespace launcher {

/// The worker whose failure is the cause; null when something else is.
const WorkerExit* first_failure(const AttemptResult& result);

/// "rank 1 failed first: exit code 3".
std::string describe_failure(const WorkerExit& exit);

/// All that is known of that worker, in lines.
std::string cause_text(const AttemptResult& result, const WorkerExit& cause);

/// How the workers ended beside `cause`, those alike in one line; empty when
/// there are none. nullptr: it was no worker's failure.
std::string others_text(const AttemptResult& result, const WorkerExit* cause);

/// ", attempt 2 of 4"; empty where there are no restarts.
std::string attempt_text(const AttemptResult& result);

/// The last lines that a worker wrote to stderr; empty when it wrote none.
std::string stderr_text(const WorkerExit& exit);

/// Each line of it after "    | ".
std::string indented(const std::string& text);

/// "1.5 s".
std::string elapsed(std::chrono::milliseconds time);

}  // namespace launcher
