#include "launcher/doctor/hosts/way_messages.h"

#include <nlohmann/json.hpp>

#include "launcher/rendezvous/message_fields.h"

namespace launcher {
namespace {

using WayJson = nlohmann::json;

constexpr size_t kLongestRefusal = 4096;
constexpr int kMostRounds = 2 * kMostProbedHosts;
constexpr int64_t kMostProbeBytes = int64_t{1} << 30;
constexpr int64_t kMostNanoseconds = int64_t{1} << 40;
constexpr int64_t kMostBytesPerSecond = int64_t{1} << 50;
constexpr double kNano = 1e9;

WayJson to_way_json(const WayHello& hello) {
  return {{"is", "doctor"},
          {"hello", encode(hello.hello)},
          {"address", hello.address},
          {"port", hello.port}};
}

WayJson to_way_json(const WayOrder& order) {
  WayJson targets = WayJson::array();
  for (const WayOrder::Target& target : order.targets) {
    targets.push_back({{"host", target.host},
                       {"id", target.id},
                       {"address", target.address},
                       {"port", target.port}});
  }
  return {{"is", "order"},
          {"round", order.round},
          {"bytes", order.bytes},
          {"targets", std::move(targets)}};
}

WayJson to_way_json(const WayResults& results) {
  WayJson ways = WayJson::array();
  for (const WayFacts& way : results.ways) {
    ways.push_back(
        {{"to", way.to},
         {"fault", static_cast<int>(way.fault)},
         {"error", way.error.substr(0, MessageFields::kLongestName / 4)},
         {"round_trip_ns",
          static_cast<int64_t>(way.round_trip_seconds * kNano)},
         {"bytes_per_second", static_cast<int64_t>(way.bytes_per_second)}});
  }
  return {
      {"is", "results"}, {"round", results.round}, {"ways", std::move(ways)}};
}

WayJson to_way_json(const WayFarewell& farewell) {
  WayJson hosts = WayJson::array();
  for (const MetHost& host : farewell.hosts) {
    WayJson known{{"name", host.name}, {"address", host.address}};
    if (host.rank) {
      known["rank"] = *host.rank;
    }
    hosts.push_back(std::move(known));
  }
  WayJson lost = WayJson::array();
  for (const std::string& name : farewell.lost) {
    lost.push_back({{"name", name}});
  }
  return {{"is", "farewell"},
          {"hosts", std::move(hosts)},
          {"own", farewell.own},
          {"waited_seconds", farewell.waited_seconds},
          {"lost", std::move(lost)}};
}

WayJson to_way_json(const WayRefusal& refusal) {
  return {{"is", "not_wanted"},
          {"text", refusal.text.substr(0, kLongestRefusal / 4)}};
}

/// Calls `read` with the fields of each item. False where one is wrong.
template <typename Read>
bool read_items(const WayJson& json, const char* name, Read read) {
  const auto items = json.find(name);
  if (items == json.end() || !items->is_array() ||
      items->size() > kMostProbedHosts) {
    return false;
  }
  for (const WayJson& item : *items) {
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

int host_number(MessageFields& fields, const char* name) {
  return fields.count(name, 0, kMostProbedHosts - 1);
}

std::optional<WayMessage> hello_message(MessageFields& fields) {
  const auto known = decode(fields.text("hello", kLongestMessage));
  const auto* hello = known ? std::get_if<Hello>(&*known) : nullptr;
  if (hello == nullptr) {
    return std::nullopt;
  }
  return WayHello{
      *hello, fields.text("address"), fields.count("port", 1, 65535)};
}

std::optional<WayMessage> order_message(const WayJson& json,
                                        MessageFields& fields) {
  WayOrder order{.round = fields.count("round", 0, kMostRounds),
                 .bytes = fields.integer("bytes", 0, kMostProbeBytes),
                 .targets = {}};
  const bool is_whole = read_items(json, "targets", [&](MessageFields& target) {
    order.targets.push_back({.host = host_number(target, "host"),
                             .id = target.text("id"),
                             .address = target.text("address"),
                             .port = target.count("port", 1, 65535)});
  });
  return is_whole ? std::optional<WayMessage>(order) : std::nullopt;
}

std::optional<WayMessage> results_message(const WayJson& json,
                                          MessageFields& fields) {
  WayResults results{fields.count("round", 0, kMostRounds), {}};
  const bool is_whole = read_items(json, "ways", [&](MessageFields& way) {
    results.ways.push_back(
        {.to = host_number(way, "to"),
         .fault = static_cast<WayFault>(
             way.count("fault", 0, static_cast<int>(WayFault::broken))),
         .error = way.text("error"),
         .round_trip_seconds = static_cast<double>(way.integer(
                                   "round_trip_ns", 0, kMostNanoseconds)) /
                               kNano,
         .bytes_per_second = static_cast<double>(
             way.integer("bytes_per_second", 0, kMostBytesPerSecond))});
  });
  return is_whole ? std::optional<WayMessage>(results) : std::nullopt;
}

std::optional<WayMessage> farewell_message(const WayJson& json,
                                           MessageFields& fields) {
  WayFarewell farewell;
  const bool is_whole =
      read_items(json,
                 "hosts",
                 [&](MessageFields& host) {
                   MetHost met{host.text("name"), host.text("address")};
                   if (host.has("rank")) {
                     met.rank = host.count("rank");
                   }
                   farewell.hosts.push_back(met);
                 }) &&
      read_items(json, "lost", [&](MessageFields& host) {
        farewell.lost.push_back(host.text("name"));
      });
  farewell.own = host_number(fields, "own");
  farewell.waited_seconds = fields.count("waited_seconds");
  const bool is_known =
      static_cast<size_t>(farewell.own) < farewell.hosts.size();
  return is_whole && is_known ? std::optional<WayMessage>(farewell)
                              : std::nullopt;
}

std::optional<WayMessage> read_way_message(const WayJson& json,
                                           MessageFields& fields) {
  const std::string is = fields.text("is");
  if (is == "doctor") {
    return hello_message(fields);
  }
  if (is == "order") {
    return order_message(json, fields);
  }
  if (is == "results") {
    return results_message(json, fields);
  }
  if (is == "farewell") {
    return farewell_message(json, fields);
  }
  if (is == "not_wanted") {
    return WayRefusal{fields.text("text", kLongestRefusal)};
  }
  return std::nullopt;
}

}  // namespace

std::string encode_way(const WayMessage& message) {
  return std::visit([](const auto& known) { return to_way_json(known); },
                    message)
             .dump(/*indent=*/-1,
                   /*indent_char=*/' ',
                   /*ensure_ascii=*/false,
                   WayJson::error_handler_t::replace) +
         "\n";
}

std::optional<WayMessage> decode_way(std::string_view line) {
  if (line.size() > kLongestWayMessage) {
    return std::nullopt;
  }
  const WayJson json = WayJson::parse(
      line.begin(), line.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return std::nullopt;
  }
  MessageFields fields(json);
  const auto message = read_way_message(json, fields);
  return fields.are_valid() ? message : std::nullopt;
}

}  // namespace launcher
