#pragma once

#include <string>
#include <vector>

#include "launcher/hosts/etcd/call.h"
#include "launcher/hosts/etcd/http.h"

namespace launcher {

/// Why one endpoint of etcd has given no answer.
struct EtcdTrouble {
  enum class Kind {
    away,      ///< it may be there again, and another endpoint now
    wrong,     ///< who is there is none, or not to be trusted
    refused,   ///< etcd does not do it, by whichever endpoint it is asked
    old_token  ///< to be asked again with another one
  };
  Kind kind = Kind::away;
  std::string text{};
  std::string advice{};
};

EtcdTrouble trouble_of(const HttpError& error);
EtcdTrouble trouble_of(const GatewayError& error, const EtcdSettings& settings);

/// Whether another endpoint is to be asked.
bool is_of_one_endpoint(const EtcdTrouble& trouble);

/// What has come of it where all endpoints that were asked had trouble.
///
/// @param endpoints one for each trouble
EtcdAnswer::Outcome outcome_of(const std::vector<EtcdTrouble>& troubles);
/// In one line, with what to do. Who has one endpoint knows which it is.
std::string text_of(const std::vector<EtcdTrouble>& troubles,
                    const std::vector<Endpoint>& endpoints);

}  // namespace launcher
