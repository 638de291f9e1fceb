#pragma once

#include <string>

#include "launcher/hosts/protocol/host_table.h"
#include "launcher/hosts/protocol/message.h"

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
  std::chrono::milliseconds keep_alive = RendezvousTimeouts().keep_alive;
};

/// Why a host may not take part, and what to do; empty when it may, unless
/// another one has its rank (holder_of_rank()). Pure.
///
/// @param hosts that take part; the one that speaks may be among them
std::string refusal_of(const Hello& hello,
                       const Admission& admission,
                       const HostTable& hosts = {});

/// The other host that has the rank that this one wants, where ranks are fixed;
/// the end of `hosts`: none.
HostTable::iterator holder_of_rank(const Hello& hello,
                                   const JobTerms& terms,
                                   HostTable& hosts);

/// Why it may not have it.
std::string rank_taken_text(const Hello& hello, const KnownHost& holder);

}  // namespace launcher
