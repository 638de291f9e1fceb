#include "launcher/doctor/paths/path_messages.h"

#include "launcher/hosts/protocol/message.h"
#include "test/support/catch.h"

using namespace launcher;

TEST_CASE("path test messages come back as they were") {
  const auto came = [](const PathMessage& message) {
    const auto read = decode_path(encode_path(message));
    REQUIRE(read);
    CHECK(encode_path(*read) == encode_path(message));
    return *read;
  };
  const PathPeer node7{{"node7", "10.0.0.7", 7}, "1-2", 4007};
  const auto hello = std::get<PathHello>(came(PathHello{3, node7}));
  CHECK(hello.rank == 3);
  CHECK(hello.peer.host.address == "10.0.0.7");
  CHECK(hello.peer.host.rank == 7);
  CHECK(hello.peer.id == "1-2");
  CHECK(hello.peer.port == 4007);
  const PathPeer absent{{"rank 1", ""}, "", 0};
  const auto peers = std::get<PathPeers>(came(PathPeers{{node7, absent}}));
  CHECK(!peers.peers.at(1).host.rank);
  const PathFacts path{.to = 2,
                       .fault = PathFault::broken,
                       .error = "why",
                       .round_trip_seconds = 0.25,
                       .bytes_per_second = 1e9};
  const auto report = std::get<PathReport>(came(PathReport{1, 3, {path}}));
  CHECK(report.rank == 1);
  CHECK(report.paths.at(0).fault == PathFault::broken);
  CHECK(report.paths.at(0).round_trip_seconds == 0.25);
  CHECK(std::get<PathRound>(came(PathRound{5})).round == 5);
  CHECK(std::get<PathEnd>(came(PathEnd{{"c"}})).lost ==
        std::vector<std::string>{"c"});
  CHECK(std::get<PathFailure>(came(PathFailure{"no"})).text == "no");
}

TEST_CASE("the longest path test messages fit") {
  PathPeers peers;
  PathReport report;
  PathEnd end;
  for (int rank = 0; rank < kMostProbedHosts; ++rank) {
    peers.peers.push_back({{std::string(253, 'h'),
                            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                            rank},
                           "4294967295-4294967295",
                           65535});
    report.paths.push_back({.to = rank, .error = std::string(253, 'e')});
    end.lost.push_back(std::string(253, 'h'));
  }
  CHECK(decode_path(encode_path(peers)));
  CHECK(decode_path(encode_path(report)));
  CHECK(decode_path(encode_path(end)));
}

TEST_CASE("a line that is no path test message is refused") {
  CHECK(!decode_path(encode(Hello{.id = "1-2", .host = "node7"})));
  for (const char* line :
       {"",
        "\n",
        "[]",
        "{}",
        "{\"is\":\"peers\",\"peers\":7}",
        "{\"is\":\"report\",\"rank\":0,\"round\":0,\"paths\":[7]}",
        "{\"is\":\"report\",\"rank\":0,\"round\":0,\"paths\":[{\"to\":0,"
        "\"fault\":99,\"error\":\"\",\"round_trip_ns\":0,"
        "\"bytes_per_second\":0}]}",
        "{\"is\":\"round\",\"round\":99999999999}",
        "{\"is\":\"hello\",\"rank\":-1,\"name\":\"a\",\"address\":\"\","
        "\"id\":\"\",\"port\":1}"}) {
    CAPTURE(line);
    CHECK(!decode_path(line));
  }
}
