#pragma once

#include <functional>
#include <string>

#include "launcher/base/environment.h"
#include "launcher/doctor/paths/hosts_facts.h"
#include "launcher/options/options.h"

namespace launcher {

/// Starts the path test (run_path_test()) as a job of one worker a host: this
/// host's ddprun meets those of the others where the user's job would, under a
/// --rdzv-id of its own, so that no doctor takes a place in a job. Hosts that
/// do not come are waited for for two minutes at most. Ends within six minutes.
///
/// @param options  the user's job; of several hosts that meet
/// @param host     this host; without an address: that of its connection
/// @param tell     gets the messages of the job's ddprun, for people
HostsFacts test_hosts(const LaunchOptions& options,
                      const MetHost& host,
                      const Environment& environment,
                      const std::function<void(const std::string&)>& tell);

/// What a worker of the path test wrote. Pure. HostsFacts::error is set where
/// the worker wrote no whole result and gave a reason.
HostsFacts parse_path_test(const std::string& out);

}  // namespace launcher
