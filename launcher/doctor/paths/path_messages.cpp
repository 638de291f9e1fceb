#include "launcher/doctor/paths/path_messages.h"

#include <nlohmann/json.hpp>

#include "launcher/hosts/protocol/message_fields.h"

namespace launcher {
namespace {

using PathJson = nlohmann::json;

constexpr size_t kLongestPathText = 4096;
constexpr int kMostRounds = 2 * kMostProbedHosts;
constexpr int64_t kMostNanoseconds = int64_t{1} << 40;
constexpr int64_t kMostBytesPerSecond = int64_t{1} << 50;
constexpr double kNano = 1e9;

/// Cut the name so that it fits into kLongestName with JSON's escapes.
std::string shortened_name(const std::string& name) {
  return name.substr(0, MessageFields::kLongestName / 4);
}

PathJson peer_json(const PathPeer& peer) {
  PathJson json{{"name", peer.host.name},
                {"address", peer.host.address},
                {"id", peer.id},
                {"port", peer.port}};
  if (peer.host.rank) {
    json["node_rank"] = *peer.host.rank;
  }
  return json;
}

PathJson to_path_json(const PathHello& hello) {
  PathJson json = peer_json(hello.peer);
  json["is"] = "hello";
  json["rank"] = hello.rank;
  return json;
}

PathJson to_path_json(const PathPeers& all) {
  PathJson peers = PathJson::array();
  for (const PathPeer& peer : all.peers) {
    peers.push_back(peer_json(peer));
  }
  return {{"is", "peers"}, {"peers", std::move(peers)}};
}

PathJson to_path_json(const PathReport& report) {
  PathJson paths = PathJson::array();
  for (const PathFacts& path : report.paths) {
    paths.push_back(
        {{"to", path.to},
         {"fault", static_cast<int>(path.fault)},
         {"error", shortened_name(path.error)},
         {"round_trip_ns",
          static_cast<int64_t>(path.round_trip_seconds * kNano)},
         {"bytes_per_second", static_cast<int64_t>(path.bytes_per_second)}});
  }
  return {{"is", "report"},
          {"rank", report.rank},
          {"round", report.round},
          {"paths", std::move(paths)}};
}

PathJson to_path_json(const PathRound& round) {
  return {{"is", "round"}, {"round", round.round}};
}

PathJson to_path_json(const PathEnd& end) {
  PathJson lost = PathJson::array();
  for (const std::string& name : end.lost) {
    lost.push_back({{"name", name}});
  }
  return {{"is", "end"}, {"lost", std::move(lost)}};
}

PathJson to_path_json(const PathFailure& failure) {
  return {{"is", "failure"},
          {"text", failure.text.substr(0, kLongestPathText / 4)}};
}

/// Calls `read` with the fields of each item. Returns false if one is invalid.
template <typename Read>
bool read_items(const PathJson& json, const char* name, Read read) {
  const auto items = json.find(name);
  if (items == json.end() || !items->is_array() ||
      items->size() > kMostProbedHosts) {
    return false;
  }
  for (const PathJson& item : *items) {
    MessageFields fields(item);
    if (!item.is_object()) {
      return false;
    }
    read(fields);
    if (!fields.are_valid()) {
      return false;
    }
  }
  return true;
}

int rank_of(MessageFields& fields, const char* name) {
  return fields.count(name, 0, kMostProbedHosts - 1);
}

PathPeer read_peer(MessageFields& fields, int least_port) {
  PathPeer peer{{fields.text("name"), fields.text("address")},
                fields.text("id"),
                fields.count("port", least_port, 65535)};
  if (fields.has("node_rank")) {
    peer.host.rank = fields.count("node_rank");
  }
  return peer;
}

std::optional<PathMessage> read_peers(const PathJson& json) {
  PathPeers all;
  const bool is_whole = read_items(json, "peers", [&](MessageFields& peer) {
    all.peers.push_back(read_peer(peer, 0));
  });
  return is_whole ? std::optional<PathMessage>(all) : std::nullopt;
}

std::optional<PathMessage> read_report(const PathJson& json,
                                       MessageFields& fields) {
  PathReport report{
      rank_of(fields, "rank"), fields.count("round", 0, kMostRounds), {}};
  const bool is_whole = read_items(json, "paths", [&](MessageFields& path) {
    report.paths.push_back(
        {.to = rank_of(path, "to"),
         .fault = static_cast<PathFault>(
             path.count("fault", 0, static_cast<int>(PathFault::broken))),
         .error = path.text("error"),
         .round_trip_seconds = static_cast<double>(path.integer(
                                   "round_trip_ns", 0, kMostNanoseconds)) /
                               kNano,
         .bytes_per_second = static_cast<double>(
             path.integer("bytes_per_second", 0, kMostBytesPerSecond))});
  });
  return is_whole ? std::optional<PathMessage>(report) : std::nullopt;
}

std::optional<PathMessage> read_end(const PathJson& json) {
  PathEnd end;
  const bool is_whole = read_items(json, "lost", [&](MessageFields& host) {
    end.lost.push_back(host.text("name"));
  });
  return is_whole ? std::optional<PathMessage>(end) : std::nullopt;
}

std::optional<PathMessage> read_path_message(const PathJson& json,
                                             MessageFields& fields) {
  const std::string is = fields.text("is");
  if (is == "hello") {
    return PathHello{rank_of(fields, "rank"), read_peer(fields, 1)};
  }
  if (is == "peers") {
    return read_peers(json);
  }
  if (is == "report") {
    return read_report(json, fields);
  }
  if (is == "round") {
    return PathRound{fields.count("round", 1, kMostRounds)};
  }
  if (is == "end") {
    return read_end(json);
  }
  if (is == "failure") {
    return PathFailure{fields.text("text", kLongestPathText)};
  }
  return std::nullopt;
}

}  // namespace

std::string encode_path(const PathMessage& message) {
  return std::visit([](const auto& known) { return to_path_json(known); },
                    message)
             .dump(/*indent=*/-1,
                   /*indent_char=*/' ',
                   /*ensure_ascii=*/false,
                   PathJson::error_handler_t::replace) +
         "\n";
}

std::optional<PathMessage> decode_path(std::string_view line) {
  if (line.size() > kLongestPathMessage) {
    return std::nullopt;
  }
  const PathJson json = PathJson::parse(
      line.begin(), line.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return std::nullopt;
  }
  MessageFields fields(json);
  const auto message = read_path_message(json, fields);
  return fields.are_valid() ? message : std::nullopt;
}

}  // namespace launcher
