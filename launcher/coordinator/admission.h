#pragma once

#include <string>

#include "launcher/coordinator/roster.h"
#include "launcher/rendezvous/message.h"

namespace launcher {

/// "2", or "1:4".
std::string host_range(const JobTerms& terms);

/// What a host says to take part in a job.
///
/// @param host its name, for people
/// @throws LaunchError when a name is too long for a message
Hello hello_of(const Meeting& meeting,
               const std::string& host,
               const HostOffer& offer);

/// What a host must say to take part in a job.
struct Admission {
  JobTerms terms;
  std::string token;  ///< empty: none is asked for
  std::chrono::milliseconds keep_alive = Patience().keep_alive;
};

/// Why a host may not take part, and what to do; empty when it may. Pure.
///
/// @param hosts that take part; the one that speaks may be among them
std::string refusal_of(const Hello& hello,
                       const Admission& admission,
                       const Roster& hosts = {});

}  // namespace launcher
