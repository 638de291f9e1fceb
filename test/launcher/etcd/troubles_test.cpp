#include "launcher/hosts/etcd/troubles.h"

#include "test/support/catch.h"

using namespace launcher;

namespace {

EtcdTrouble away(const std::string& text) {
  return trouble_of(HttpError{HttpError::Kind::unreachable, text});
}

}  // namespace

TEST_CASE("trouble with one endpoint of etcd is worth asking another") {
  using Http = HttpError::Kind;
  using Gateway = GatewayError::Kind;
  const auto is_of_one = [](const auto&... error) {
    return is_of_one_endpoint(trouble_of(error...));
  };
  const EtcdSettings settings;
  CHECK(is_of_one(HttpError{Http::unreachable, ""}));
  CHECK(is_of_one(HttpError{Http::tls, ""}));
  CHECK(is_of_one(HttpError{Http::stranger, ""}));
  CHECK(!is_of_one(HttpError{Http::no_library, ""}));
  CHECK(is_of_one(GatewayError{Gateway::passing, ""}, settings));
  CHECK(is_of_one(GatewayError{Gateway::stranger, ""}, settings));
  CHECK(!is_of_one(GatewayError{Gateway::refused, ""}, settings));
  CHECK(!is_of_one(GatewayError{Gateway::old_token, ""}, settings));
}

TEST_CASE("what all endpoints of etcd said is hopeless or may pass") {
  using Outcome = EtcdAnswer::Outcome;
  const EtcdTrouble wrong = trouble_of(HttpError{HttpError::Kind::tls, "tls"});
  const EtcdTrouble refused =
      trouble_of(GatewayError{GatewayError::Kind::refused, "no"}, {});
  CHECK(outcome_of({away("a")}) == Outcome::unreachable);
  CHECK(outcome_of({wrong}) == Outcome::hopeless);
  CHECK(outcome_of({wrong, away("b")}) == Outcome::unreachable);
  CHECK(outcome_of({wrong, wrong}) == Outcome::hopeless);
  CHECK(outcome_of({away("a"), refused}) == Outcome::hopeless);
}

TEST_CASE("one line says what each endpoint said, and each advice once") {
  const std::string advice = away("").advice;
  CHECK(text_of({away("closed")}, {{"a", 1}}) == "closed; " + advice);
  CHECK(text_of({away("closed"), away("silent")}, {{"a", 1}, {"::1", 2}}) ==
        "a:1: closed, [::1]:2: silent; " + advice);
}
