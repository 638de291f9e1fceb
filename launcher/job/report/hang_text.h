#pragma once

#include <string>

#include "launcher/job/report/report.h"

// A hang, for people. Pure.
namespace launcher {

/// "rank 1 hangs: no progress for 12.3 s (--hang-timeout is 10.0 s)", or
/// "ranks 1, 3 hang: ...".
std::string headline(const Hang& hang);

/// The whole report: who hangs, since when, what each rank has reported last,
/// stacks where they could be got, and how the workers ended.
std::string hang_report(const AttemptResult& result, const Hang& hang);

}  // namespace launcher
