#pragma once

#include <functional>
#include <string>

#include "launcher/base/environment.h"
#include "launcher/doctor/paths/hosts_facts.h"
#include "launcher/options/options.h"

namespace launcher {

/// Runs the path test (run_path_test()) as a job with one worker per host. This
/// host's ddprun joins the other hosts at the place of the user's job, with a
/// separate --rdzv-id, so that the test does not join a real job. Waits at most
/// two minutes for missing hosts. Ends within six minutes.
///
/// @param options the user's job, of several hosts with a coordinator
/// @param host this host; an empty address means the address of its connection
/// @param tell receives the messages of the job's ddprun, for the user
HostsFacts test_hosts(const LaunchOptions& options,
                      const TestedHost& host,
                      const Environment& environment,
                      const std::function<void(const std::string&)>& tell);

/// Parses the output of a worker of the path test. If the output is incomplete
/// and contains a reason, sets HostsFacts::error. Pure function.
HostsFacts parse_path_test(const std::string& out);

}  // namespace launcher
