#pragma once

#include <string>
#include <vector>

#include "launcher/hosts/etcd/call.h"
#include "launcher/hosts/etcd/http.h"

namespace launcher {

/// Reason for a failed request to one endpoint of etcd.
struct EtcdTrouble {
  enum class Kind {
    away,      ///< unreachable now; another endpoint may answer
    wrong,     ///< the server there is no etcd, or cannot be trusted
    refused,   ///< etcd refuses the request at every endpoint
    old_token  ///< the request needs a new token
  };
  Kind kind = Kind::away;
  std::string text{};
  std::string advice{};
};

EtcdTrouble trouble_of(const HttpError& error);
EtcdTrouble trouble_of(const GatewayError& error, const EtcdSettings& settings);

/// Whether another endpoint may answer the request.
bool is_of_one_endpoint(const EtcdTrouble& trouble);

/// Outcome of a request that failed at all tried endpoints.
EtcdAnswer::Outcome outcome_of(const std::vector<EtcdTrouble>& troubles);
/// Describes the failures in one line, with advice. Names the endpoints if
/// there are several.
///
/// @param endpoints  one for each trouble
std::string text_of(const std::vector<EtcdTrouble>& troubles,
                    const std::vector<Endpoint>& endpoints);

}  // namespace launcher
