#pragma once

#include <string>

#include "launcher/job/report/report.h"

// Report texts about an attempt's workers. Pure functions.
namespace launcher {

/// Returns the failed worker if its failure is the cause; nullptr for other
/// causes.
const WorkerExit* first_failure(const AttemptResult& result);

/// Returns "rank 1 failed first: exit code 3".
std::string describe_failure(const WorkerExit& exit);

/// Returns all details of the failed worker, in lines.
std::string cause_text(const AttemptResult& result, const WorkerExit& cause);

/// Describes how the workers other than `cause` ended; groups equal endings in
/// one line. Empty if there are no other workers. Pass nullptr if the cause is
/// no worker's failure.
std::string others_text(const AttemptResult& result, const WorkerExit* cause);

/// Returns ", attempt 2 of 4"; empty if restarts are not enabled.
std::string attempt_text(const AttemptResult& result);

/// Returns the last lines of a worker's stderr; empty if there are none.
std::string stderr_text(const WorkerExit& exit);

}  // namespace launcher
