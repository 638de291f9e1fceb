#pragma once

#include <string>

#include "launcher/hosts/coordinator/host_table.h"
#include "launcher/hosts/protocol/message.h"

namespace launcher {

/// Number of hosts for messages: "2" or "1:4".
std::string host_range(const JobTerms& terms);

/// Requirements for a host to take part in a job.
struct Admission {
  JobTerms terms;
  std::string token;  ///< empty: none is needed
  std::chrono::milliseconds keep_alive = RendezvousTimeouts().keep_alive;
};

/// Reason why a host may not take part, with advice. Empty: it may, unless
/// another host has its rank (holder_of_rank()). Pure.
///
/// @param hosts  hosts of the job, possibly with the host of this `hello`
std::string refusal_of(const Hello& hello,
                       const Admission& admission,
                       const HostTable& hosts = {});

/// Finds the other host that has the rank of this `hello`, if ranks are fixed.
/// Returns the end of `hosts` if there is none.
HostTable::iterator holder_of_rank(const Hello& hello,
                                   const JobTerms& terms,
                                   HostTable& hosts);

/// Reason why a host may not have the rank of `holder`.
std::string rank_taken_text(const Hello& hello, const KnownHost& holder);

}  // namespace launcher
