#include "launcher/hosts/etcd/gateway.h"

#include <nlohmann/json.hpp>

#include "launcher/hosts/etcd/curl_functions.h"
#include "launcher/hosts/etcd/job_state.h"
#include "test/support/catch.h"

#if __has_include(<curl/curl.h>)
#include <curl/curl.h>
static_assert(launcher::curl::kWriteData == CURLOPT_WRITEDATA);
static_assert(launcher::curl::kUrl == CURLOPT_URL);
static_assert(launcher::curl::kProxy == CURLOPT_PROXY);
static_assert(launcher::curl::kErrorBuffer == CURLOPT_ERRORBUFFER);
static_assert(launcher::curl::kPostFields == CURLOPT_POSTFIELDS);
static_assert(launcher::curl::kHttpHeader == CURLOPT_HTTPHEADER);
static_assert(launcher::curl::kCertificate == CURLOPT_SSLCERT);
static_assert(launcher::curl::kKey == CURLOPT_SSLKEY);
static_assert(launcher::curl::kAuthorities == CURLOPT_CAINFO);
static_assert(launcher::curl::kResolve == CURLOPT_RESOLVE);
static_assert(launcher::curl::kSocketOptionsFunction ==
              CURLOPT_SOCKOPTFUNCTION);
static_assert(launcher::curl::kSocketFunction == CURLMOPT_SOCKETFUNCTION);
static_assert(launcher::curl::kSocketData == CURLMOPT_SOCKETDATA);
static_assert(launcher::curl::kTimerFunction == CURLMOPT_TIMERFUNCTION);
static_assert(launcher::curl::kTimerData == CURLMOPT_TIMERDATA);
static_assert(launcher::curl::kPollIn == CURL_POLL_IN);
static_assert(launcher::curl::kPollOut == CURL_POLL_OUT);
static_assert(launcher::curl::kPollRemove == CURL_POLL_REMOVE);
static_assert(launcher::curl::kSocketTimeout == CURL_SOCKET_TIMEOUT);
static_assert(launcher::curl::kDone == CURLMSG_DONE);
static_assert(sizeof(launcher::curl::Message) == sizeof(CURLMsg));
static_assert(launcher::curl::kWriteFunction == CURLOPT_WRITEFUNCTION);
static_assert(launcher::curl::kPostFieldSize == CURLOPT_POSTFIELDSIZE);
static_assert(launcher::curl::kNoSignal == CURLOPT_NOSIGNAL);
static_assert(launcher::curl::kTimeoutMs == CURLOPT_TIMEOUT_MS);
static_assert(launcher::curl::kConnectTimeoutMs == CURLOPT_CONNECTTIMEOUT_MS);
static_assert(launcher::curl::kResponseCode == CURLINFO_RESPONSE_CODE);
static_assert(launcher::curl::kLocalAddress == CURLINFO_LOCAL_IP);
static_assert(launcher::curl::kNoSuchProtocol == CURLE_UNSUPPORTED_PROTOCOL);
static_assert(launcher::curl::kStrangeReply == CURLE_WEIRD_SERVER_REPLY);
static_assert(launcher::curl::kWriteStopped == CURLE_WRITE_ERROR);
static_assert(launcher::curl::kTimedOut == CURLE_OPERATION_TIMEDOUT);
static_assert(launcher::curl::kTlsConnect == CURLE_SSL_CONNECT_ERROR);
static_assert(launcher::curl::kEmptyReply == CURLE_GOT_NOTHING);
static_assert(launcher::curl::kNothingRead == CURLE_RECV_ERROR);
static_assert(launcher::curl::kTlsCertificate == CURLE_SSL_CERTPROBLEM);
static_assert(launcher::curl::kTlsCipher == CURLE_SSL_CIPHER);
static_assert(launcher::curl::kTlsPeer == CURLE_PEER_FAILED_VERIFICATION);
static_assert(launcher::curl::kTlsAuthorities == CURLE_SSL_CACERT_BADFILE);
static_assert(launcher::curl::kErrorSize == CURL_ERROR_SIZE);
static_assert(launcher::curl::kGlobalAll == CURL_GLOBAL_ALL);
#endif

using Catch::Contains;
using namespace launcher;
using Json = nlohmann::json;

TEST_CASE("base64 of etcd's gateway, both ways") {
  const std::pair<std::string, std::string> pairs[] = {
      {"", ""},
      {"f", "Zg=="},
      {"fo", "Zm8="},
      {"foo", "Zm9v"},
      {"\xff\xfe\x01", "//4B"}};
  for (const auto& [bytes, text] : pairs) {
    CAPTURE(text);
    CHECK(to_base64(bytes) == text);
    CHECK(from_base64(text) == bytes);
  }
  for (const char* wrong :
       {"Z", "Zg=", "Zh==", "====", "Z===", "Z!==", "Zg==Zg=="}) {
    CAPTURE(wrong);
    CHECK(!from_base64(wrong));
  }
}

TEST_CASE("a transaction compares revisions, writes, or reads what is there") {
  const GatewayRequest request = request_of({.expected = {{"a", 7}},
                                             .writes = {{"b", "v", 9}},
                                             .removals = {"a"},
                                             .reads = {"a"}});
  CHECK(request.path == "/v3/kv/txn");
  const Json body = Json::parse(request.body);
  CHECK(body["compare"] == Json::parse(R"([{"key":"YQ==","target":"MOD",
      "result":"EQUAL","mod_revision":"7"}])"));
  CHECK(body["success"][0]["request_put"] ==
        Json::parse(R"({"key":"Yg==","value":"dg==","lease":"9"})"));
  CHECK(body["success"][1]["request_delete_range"]["key"] == "YQ==");
  CHECK(body["failure"][0]["request_range"]["key"] == "YQ==");
  const Json read = Json::parse(request_of({.reads = {"a"}}).body);
  CHECK(read["success"].size() == 1);
  CHECK(read["failure"].empty());
}

TEST_CASE("answers of etcd's gateway") {
  const auto read = read_outcome(
      200,
      R"({"header":{"revision":"7"},"responses":[{"response_range":{"kvs":
      [{"key":"YQ==","mod_revision":"5","value":"dg=="}],"count":"1"}},
      {"response_range":{}}]})",
      2);
  const auto* outcome = std::get_if<EtcdOutcome>(&read);
  REQUIRE(outcome != nullptr);
  CHECK(!outcome->is_done);
  CHECK(outcome->revision == 7);
  REQUIRE(outcome->entries.size() == 2);
  REQUIRE(outcome->entries[0]);
  CHECK(outcome->entries[0]->value == "v");
  CHECK(outcome->entries[0]->revision == 5);
  CHECK(!outcome->entries[1]);
  const auto lease = read_lease(200, R"({"ID":"12","TTL":"15"})");
  CHECK(std::get<GrantedLease>(lease).time.count() == 15);
  const auto gone = read_lease(200, R"({"result":{"ID":"12"}})");
  CHECK(std::get<GrantedLease>(gone).time.count() == 0);
  CHECK(std::get<std::string>(read_token(200, R"({"token":"ab.1"})")) ==
        "ab.1");
  CHECK(
      has_change("{\"result\":{\"created\":true}}\n"
                 "{\"result\":{\"events\":[{}]}}\n"));
  CHECK(!has_change("{\"result\":{\"created\":true}}\n{\"result\":{\"ev"));
}

TEST_CASE("errors of etcd's gateway: who can do something about them") {
  using Kind = GatewayError::Kind;
  const auto kind_of = [](int status, const std::string& body) {
    const auto answer = read_outcome(status, body, 1);
    const auto* error = std::get_if<GatewayError>(&answer);
    REQUIRE(error != nullptr);
    CHECK_THAT(error->text, !Contains("\n"));
    return error->kind;
  };
  CHECK(kind_of(503, R"({"message":"no leader","code":14})") == Kind::passing);
  CHECK(kind_of(408, R"({"error":"connection is closing","code":1})") ==
        Kind::passing);
  CHECK(kind_of(401, R"({"message":"bad token","code":16})") ==
        Kind::old_token);
  CHECK(kind_of(400, R"({"error":"wrong\npassword","code":3})") ==
        Kind::refused);
  CHECK(kind_of(200, "<html>") == Kind::stranger);
  CHECK(kind_of(404, "{}") == Kind::stranger);
  CHECK(kind_of(400, "CommonName of client sending\na request") ==
        Kind::certificate);
  CHECK(kind_of(200, "{}") == Kind::stranger);
  CHECK(kind_of(200, R"({"header":{"revision":"7"},"responses":[]})") ==
        Kind::stranger);
}

TEST_CASE("what a job keeps in etcd, both ways") {
  EtcdJobState record;
  record.job = "a";
  record.writer = "b";
  record.generation = 4;
  record.host_count = 2;
  record.restarts = 1;
  record.restart_ages = {std::chrono::milliseconds(70)};
  record.closed = JobClosed{3, "rank 0 failed"};
  const auto same = decode_job_state(encode(record));
  REQUIRE(same);
  CHECK(*same == record);
  CHECK(same->restart_ages == record.restart_ages);
  const auto place =
      decode_place(encode(CoordinatorPlace{"i", "h", {"::1", 7}}));
  REQUIRE(place);
  CHECK(place->endpoint.port == 7);
  CHECK(!decode_place(R"({"id":"","host":"","address":"a","port":70000})"));
}
