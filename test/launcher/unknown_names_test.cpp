#include "ddp/base/text/nearest.h"
#include "launcher/base/error.h"
#include "launcher/options/options.h"
#include "launcher/options/rendezvous_config.h"
#include "test/support/catch.h"

using Catch::Contains;
using ddp::detail::edit_distance;
using ddp::detail::nearest;
using namespace launcher;

namespace {

using Texts = std::vector<std::string>;

Texts warnings_of(Texts arguments, const Environment& environment = {}) {
  arguments.emplace_back("program");
  return std::get<LaunchOptions>(
             parse_options(std::move(arguments), environment))
      .warnings;
}

}  // namespace

TEST_CASE("edit distances") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "abc") == 0);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("flaw", "lawn") == 2);
  CHECK(edit_distance("ab", "ba") == 2);
  CHECK(edit_distance("NPROC_PERNODE", "NPROC_PER_NODE") == 1);
  for (const std::string& first : Texts{"a", "abcd", "bcd", "xyz", "aab"}) {
    for (const std::string& second : Texts{"", "abd", "bcda", "zyx"}) {
      CHECK(edit_distance(first, second) == edit_distance(second, first));
    }
  }
}

TEST_CASE("the name that was probably meant") {
  const Texts known{"timeout", "join_timeout", "is_host", "nproc-per-node"};
  CHECK(nearest("time_out", known) == "timeout");
  CHECK(nearest("is_hst", known) == "is_host");
  CHECK(nearest("nproc", known) == "nproc-per-node");
  CHECK(nearest("jointimeout", known) == "join_timeout");
  CHECK(nearest("bogus", known).empty());
  CHECK(nearest("xy", known).empty());
  CHECK(nearest("", known).empty());
  CHECK(nearest("x", {}).empty());
  CHECK(nearest(std::string(100'000, 't'), known).empty());
}

TEST_CASE("a variable that no option has is one warning") {
  const Environment environment{{"PET_NPROC_PERNODE", "4"},
                                {"PET_XYZ", "1"},
                                {"PET_NODE_RANK", "0"},
                                {"PETER", "1"},
                                {"PET", "1"},
                                {"A_PET_X", "1"}};
  CHECK(warnings_of({}, environment) ==
        Texts{"PET_NPROC_PERNODE: no option has this variable (did you mean "
              "PET_NPROC_PER_NODE?)",
              "PET_XYZ: no option has this variable"});
}

TEST_CASE("a key of --rdzv-conf that nobody knows is one warning") {
  CHECK(warnings_of({"--rdzv-conf=time_out=900,is_host=1"}) ==
        Texts{"--rdzv-conf: nobody reads the key time_out (did you mean "
              "timeout?)"});
  CHECK(warnings_of({"--rdzv_conf", "zzz=1,jion_timeout=3"}).size() == 2);
  CHECK(warnings_of({"--rdzv-conf=time_out=1", "--rdzv-conf="}).empty());
}

TEST_CASE("--rdzv-conf: keys and values") {
  using Settings = std::map<std::string, std::string>;
  CHECK(parse_settings("").empty());
  CHECK(parse_settings("  ").empty());
  CHECK(parse_settings("a=1, b = x=y ,a=2") ==
        Settings{{"a", "2"}, {"b", "x=y"}});
  // As in PyTorch's own tests, which pass the quotes without a shell.
  CHECK(parse_settings("'join_timeout=5,timeout=6'") ==
        Settings{{"join_timeout", "5"}, {"timeout", "6"}});
  CHECK(parse_settings(" \" a=1\" ") == Settings{{"a", "1"}});
  CHECK(parse_settings("''").empty());
  CHECK(parse_settings("a='1'") == Settings{{"a", "'1'"}});
  for (const char* wrong :
       {",", "a", "a=", "=1", "a=1,", "a=1,,b=2", "a= ", "'", "','"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH(parse_settings(wrong), Contains("expected key=value"));
  }
  CHECK(warnings_of({"--rdzv-conf=timeout=900,read_timeout=1,is_host=True,"
                     "store_type=TCP"})
            .empty());
  const std::pair<const char*, const char*> wrong[] = {
      {"meeting_port=abc", "meeting_port: expected an integer from 0"},
      {"keep_alive_max_attempt=0",
       "keep_alive_max_attempt: expected an integer from 1"},
      {"join_timeout=soon", "join_timeout: expected"},
      {"is_host=maybe", "is_host: expected one of 1, true"},
  };
  for (const auto& [text, error] : wrong) {
    CHECK_THROWS_WITH(
        warnings_of({"--rdzv-conf", text}),
        Contains(std::string("--rdzv-conf: ") + error) && Contains("but got"));
  }
}

TEST_CASE("--local-addr is a name or an address, without a port") {
  for (const char* good : {"",
                           "localhost",
                           "node-7.cluster_a",
                           "10.0.0.1",
                           "::1",
                           "fe80::1%eth0"}) {
    CAPTURE(good);
    CHECK(parse_host(good) == good);
  }
  for (const char* wrong : {"host:80", "a b", "http://x", "[::1]:80", "a/b"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH(warnings_of({"--local-addr", wrong}),
                      Contains("--local-addr: expected the name or address"));
  }
}

TEST_CASE("an option that does not exist: which one was meant") {
  CHECK_THROWS_WITH(warnings_of({"--nproc-pernode=2"}),
                    Contains("unknown option --nproc-pernode=2 (did you mean "
                             "--nproc-per-node?); see ddprun --help"));
  CHECK_THROWS_WITH(warnings_of({"--max_restart5=2"}),
                    Contains("did you mean --max-restarts?"));
  CHECK_THROWS_WITH(warnings_of({"--bogus"}), !Contains("did you mean"));
}
