#include "launcher/doctor/hosts/way_messages.h"

#include "test/support/catch.h"

using namespace launcher;

TEST_CASE("doctors' messages come back as they were") {
  const Hello hello{.token = "secret", .id = "1-2", .host = "node7"};
  const auto came = [](const WayMessage& message) {
    const auto read = decode_way(encode_way(message));
    REQUIRE(read);
    CHECK(encode_way(*read) == encode_way(message));
    return *read;
  };
  const auto first =
      std::get<WayHello>(came(WayHello{hello, "10.0.0.7", 4007}));
  CHECK(first.hello.token == "secret");
  CHECK(first.address == "10.0.0.7");
  const auto order =
      std::get<WayOrder>(came(WayOrder{3, 1 << 20, {{2, "3-4", "::1", 80}}}));
  CHECK(order.targets.at(0).id == "3-4");
  const WayFacts way{.to = 2,
                     .fault = WayFault::broken,
                     .error = "why",
                     .round_trip_seconds = 0.25,
                     .bytes_per_second = 1e9};
  const auto results = std::get<WayResults>(came(WayResults{3, {way}}));
  CHECK(results.ways.at(0).fault == WayFault::broken);
  CHECK(results.ways.at(0).round_trip_seconds == 0.25);
  const auto farewell = std::get<WayFarewell>(came(
      WayFarewell{{{"a", "10.0.0.1", 0}, {"b", "10.0.0.2"}}, 1, 9, {"c"}}));
  CHECK(farewell.hosts.at(0).rank == 0);
  CHECK(!farewell.hosts.at(1).rank);
  CHECK(farewell.lost == std::vector<std::string>{"c"});
  CHECK(std::get<WayRefusal>(came(WayRefusal{"no"})).text == "no");
}

TEST_CASE("the longest of the doctors' messages fit") {
  WayOrder order;
  WayFarewell farewell;
  for (int host = 0; host < kMostProbedHosts; ++host) {
    order.targets.push_back({host,
                             "4294967295-4294967295",
                             "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                             65535});
    farewell.hosts.push_back(
        {std::string(253, 'h'), order.targets.back().address, host});
    farewell.lost.push_back(std::string(253, 'h'));
  }
  CHECK(decode_way(encode_way(order)));
  CHECK(decode_way(encode_way(farewell)));
}

TEST_CASE("a job's message is none of the doctors', nor the other way round") {
  const Hello hello{.id = "1-2", .host = "node7"};
  CHECK(!decode_way(encode(hello)));
  CHECK(!decode(encode_way(WayHello{hello, "10.0.0.7", 4007})));
}

TEST_CASE("what is no message of the doctors' is nothing") {
  for (const char* line :
       {"",
        "\n",
        "[]",
        "{}",
        "{\"is\":\"farewell\",\"hosts\":[],\"own\":0,\"waited_seconds\":0,"
        "\"lost\":[]}",
        "{\"is\":\"results\",\"round\":0,\"ways\":[7]}",
        "{\"is\":\"results\",\"round\":0,\"ways\":[{\"to\":0,\"fault\":99,"
        "\"error\":\"\",\"round_trip_ns\":0,\"bytes_per_second\":0}]}",
        "{\"is\":\"order\",\"round\":0,\"bytes\":99999999999,\"targets\":[]}",
        "{\"is\":\"doctor\",\"hello\":\"{}\",\"address\":\"\",\"port\":1}"}) {
    CAPTURE(line);
    CHECK(!decode_way(line));
  }
}
