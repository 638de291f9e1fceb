#include <map>
#include <memory>
#include <string>

#include "test/launcher/ddprun/etcd_server.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;
using namespace launcher::test;

// An etcd that requires TLS, client certificates and a password.
namespace {

using Variables = std::map<std::string, std::string>;

Variables variables_with(const std::string& password) {
  return {{"DDPRUN_TOKEN", "x"},
          {"DDPRUN_ETCD_USER", "root"},
          {"DDPRUN_ETCD_PASSWORD", password}};
}

std::string tls_settings(const std::string& authority,
                         const Certificate& client) {
  return ",protocol=HTTPS,ca_cert=" + authority + ",ssl_cert=" + client.file +
         ",ssl_cert_key=" + client.key;
}

}  // namespace

TEST_CASE("etcd: hosts meet over TLS, each with a certificate and a password") {
  if (!is_etcd_there()) {
    return;
  }
  Authority authority;
  Authority other;
  const Certificate client = authority.certify("/O=clients");
  EtcdServer etcd(
      {authority.certify("/CN=etcd", "localhost"), authority.file()});
  etcd.run_etcdctl("user add root:right");
  etcd.run_etcdctl("user grant-role root root");
  etcd.run_etcdctl("auth enable");

  const auto host = [&] {
    return std::make_unique<Ddprun>(
        etcd_host_of(etcd.endpoint(),
                     "2",
                     "job",
                     {"sh", "-c", "echo in a world of $WORLD_SIZE"},
                     tls_settings(authority.file(), client)),
        variables_with("right"));
  };
  const std::unique_ptr<Ddprun> hosts[] = {host(), host()};
  for (const auto& started : hosts) {
    const Result result = started->finish();
    CAPTURE(result.err);
    CHECK(result.code() == 0);
    CHECK_THAT(result.out, Contains("in a world of 2"));
    CHECK(!result.left_something);
  }

  const auto error_of = [](const std::string& endpoint,
                           const std::string& settings,
                           const std::string& password) {
    const Result result =
        run_ddprun(etcd_host_of(endpoint, "2", "refused", {"true"}, settings),
                   variables_with(password));
    CAPTURE(result.err);
    CHECK(result.code() == 1);
    // A client that TLS refuses may first see a closed connection. On a busy
    // machine it may print that it retries. So only the last line counts.
    REQUIRE(result.err.size() > 1);
    return result.err.substr(result.err.rfind('\n', result.err.size() - 2) + 1);
  };
  const std::string right = tls_settings(authority.file(), client);
  const std::string by_address =
      "127.0.0.1" + etcd.endpoint().substr(etcd.endpoint().find(':'));
  CHECK_THAT(
      error_of(etcd.endpoint(), tls_settings(other.file(), client), "right"),
      Contains("certificate") && Contains("check protocol, ca_cert"));
  CHECK_THAT(error_of(by_address, right, "right"),
             Contains("127.0.0.1") && Contains("a name in etcd's certificate"));
  CHECK_THAT(
      error_of(etcd.endpoint(), right, "wrong"),
      Contains("authentication failed") && Contains("check DDPRUN_ETCD_USER"));
  CHECK_THAT(error_of(etcd.endpoint(),
                      ",protocol=https,ca_cert=" + authority.file(),
                      "right"),
             Contains("alert") && Contains("ssl_cert"));
  CHECK_THAT(
      error_of(etcd.endpoint(),
               tls_settings(authority.file(), other.certify("/O=clients")),
               "right"),
      Contains("alert") && Contains("ssl_cert"));
  CHECK_THAT(
      error_of(etcd.endpoint(), tls_settings("/no/such/file", client), "right"),
      Contains("/no/such/file"));
  // etcd's gateway would use this name as the user's.
  CHECK_THAT(
      error_of(etcd.endpoint(),
               tls_settings(authority.file(), authority.certify("/CN=root")),
               "right"),
      Contains("CommonName") && Contains("without a common name"));
  // Enough time for one answer on a busy machine.
  CHECK_THAT(error_of(etcd.endpoint(), ",join_timeout=2", "right"),
             Contains("protocol=https"));
}
