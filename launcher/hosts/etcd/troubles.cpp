#include "launcher/hosts/etcd/troubles.h"

#include <algorithm>

#include "launcher/net/endpoint.h"

namespace launcher {
namespace {

const char* http_advice(HttpError::Kind kind) {
  switch (kind) {
    case HttpError::Kind::no_library:
      return "install libcurl (apt-get install libcurl4, dnf install libcurl), "
             "or meet with --rdzv-backend=c10d";
    case HttpError::Kind::tls:
      return "check protocol, ca_cert, ssl_cert and ssl_cert_key in "
             "--rdzv-conf, and that --rdzv-endpoint is a name in etcd's "
             "certificate";
    case HttpError::Kind::stranger:
      return "check the port of --rdzv-endpoint";
    case HttpError::Kind::unreachable:
      break;
  }
  return "check that etcd runs there, --rdzv-endpoint and the firewall";
}

std::string gateway_advice(GatewayError::Kind kind,
                           const EtcdSettings& settings) {
  switch (kind) {
    case GatewayError::Kind::passing:
      return "look at that etcd's messages";
    case GatewayError::Kind::stranger:
      return "check the port of --rdzv-endpoint, --rdzv-conf protocol, and "
             "that it is etcd 3.4 or newer";
    case GatewayError::Kind::certificate:
      return "beside a password etcd takes only certificates without a common "
             "name: make ssl_cert so";
    case GatewayError::Kind::refused:
    case GatewayError::Kind::old_token:
      break;
  }
  return "check DDPRUN_ETCD_USER, DDPRUN_ETCD_PASSWORD and the user's rights "
         "to keys below " +
         settings.prefix;
}

EtcdTrouble::Kind trouble_kind(HttpError::Kind kind) {
  switch (kind) {
    case HttpError::Kind::no_library:
      return EtcdTrouble::Kind::refused;
    case HttpError::Kind::tls:
    case HttpError::Kind::stranger:
      return EtcdTrouble::Kind::wrong;
    case HttpError::Kind::unreachable:
      break;
  }
  return EtcdTrouble::Kind::away;
}

EtcdTrouble::Kind trouble_kind(GatewayError::Kind kind) {
  switch (kind) {
    case GatewayError::Kind::passing:
      return EtcdTrouble::Kind::away;
    case GatewayError::Kind::certificate:
    case GatewayError::Kind::stranger:
      return EtcdTrouble::Kind::wrong;
    case GatewayError::Kind::old_token:
      return EtcdTrouble::Kind::old_token;
    case GatewayError::Kind::refused:
      break;
  }
  return EtcdTrouble::Kind::refused;
}

}  // namespace

EtcdTrouble trouble_of(const HttpError& error) {
  return {trouble_kind(error.kind), error.text, http_advice(error.kind)};
}

EtcdTrouble trouble_of(const GatewayError& error,
                       const EtcdSettings& settings) {
  return {trouble_kind(error.kind),
          error.text,
          gateway_advice(error.kind, settings)};
}

bool is_of_one_endpoint(const EtcdTrouble& trouble) {
  return trouble.kind == EtcdTrouble::Kind::away ||
         trouble.kind == EtcdTrouble::Kind::wrong;
}

EtcdAnswer::Outcome outcome_of(const std::vector<EtcdTrouble>& troubles) {
  const bool may_pass = std::any_of(
      troubles.begin(), troubles.end(), [](const EtcdTrouble& trouble) {
        return trouble.kind == EtcdTrouble::Kind::away;
      });
  // A refusal holds for all endpoints.
  const bool is_refused =
      !troubles.empty() && !is_of_one_endpoint(troubles.back());
  return may_pass && !is_refused ? EtcdAnswer::Outcome::unreachable
                                 : EtcdAnswer::Outcome::hopeless;
}

std::string text_of(const std::vector<EtcdTrouble>& troubles,
                    const std::vector<Endpoint>& endpoints) {
  std::string text;
  std::vector<std::string> advices;
  for (size_t index = 0; index < troubles.size(); ++index) {
    const EtcdTrouble& trouble = troubles[index];
    text += text.empty() ? "" : ", ";
    if (troubles.size() > 1) {
      text += text_of(endpoints[index]) + ": ";
    }
    text += trouble.text;
    if (std::find(advices.begin(), advices.end(), trouble.advice) ==
        advices.end()) {
      advices.push_back(trouble.advice);
    }
  }
  for (const std::string& advice : advices) {
    text += "; " + advice;
  }
  return text;
}

}  // namespace launcher
