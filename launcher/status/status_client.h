#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/plan/environment.h"
#include "launcher/status/status_report.h"

namespace launcher {

/// The status sockets of this user's jobs on this machine: of those that run in
/// this network namespace, wherever their folders are, and in the places of
/// temporary files, where killed ones have left theirs.
std::vector<std::string> find_status_sockets(const Environment& environment);

/// Asks all of them at once.
///
/// @param job the one that is meant, as is_asked_for() takes it. Once it has
///   answered, the others are hardly waited for: another one may have its id.
/// @param patience for all; who has not answered then is silent
StatusAnswers ask_jobs(
    const std::vector<std::string>& sockets,
    const std::string& job = {},
    std::chrono::milliseconds patience = std::chrono::seconds(5));

}  // namespace launcher
