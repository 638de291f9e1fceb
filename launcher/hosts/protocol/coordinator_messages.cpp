#include "launcher/hosts/protocol/coordinator_messages.h"

#include <algorithm>
#include <limits>
#include <string>

namespace launcher {
namespace {

constexpr size_t kLongestText = 2000;
// encode() replaces invalid bytes, which can make a text longer.
constexpr size_t kLongestReadText = 4 * kLongestText;

// Changes that a coordinator reports, in the order of the enum.
constexpr const char* kChanges[] = {"joined", "left", "vanished", "failed"};

std::string cut(const std::string& text) {
  return text.substr(0, kLongestText);
}

}  // namespace

MessageJson to_json(const Noted& noted) {
  MessageJson json{{"is", "noted"}};
  if (!noted.waits_for.empty()) {
    json["waits_for"] = cut(noted.waits_for);
  }
  if (noted.ends >= 0) {
    json["ends"] = noted.ends;
  }
  if (!noted.seen_address.empty()) {
    json["seen_address"] = noted.seen_address;
  }
  return json;
}

Noted noted_of(MessageFields& fields) {
  Noted noted;
  if (fields.has("waits_for")) {
    noted.waits_for = fields.text("waits_for", kLongestReadText);
  }
  if (fields.has("ends")) {
    noted.ends = fields.count("ends");
  }
  if (fields.has("seen_address")) {
    noted.seen_address = fields.text("seen_address");
  }
  return noted;
}

MessageJson to_json(const WorldFormed& formed) {
  const World& world = formed.world;
  const RoleRanks role =
      world.role.value_or(RoleRanks{world.first_rank, world.world_size});
  MessageJson json{{"is", "formed"},
                   {"generation", world.generation},
                   {"restarts", world.restarts},
                   {"host_rank", world.host_rank},
                   {"host_count", world.host_count},
                   {"first_rank", world.first_rank},
                   {"world_size", world.world_size},
                   {"first_role_rank", role.first_rank},
                   {"role_world_size", role.size},
                   {"store_host", world.master.host},
                   {"store_port", world.master.port}};
  if (world.restart_after) {
    json["restart_after_ms"] = world.restart_after->count();
  }
  return json;
}

WorldFormed formed_of(MessageFields& fields) {
  World world;
  world.generation = fields.count("generation");
  world.restarts = fields.count("restarts", 0, std::numeric_limits<int>::max());
  world.host_count = fields.count("host_count", 1);
  world.host_rank = fields.count("host_rank", 0, world.host_count - 1);
  world.world_size = fields.count("world_size", 1);
  world.first_rank = fields.count("first_rank", 0, world.world_size - 1);
  world.role.emplace();
  world.role->size = fields.count("role_world_size", 1, world.world_size);
  world.role->first_rank =
      fields.count("first_role_rank", 0, world.role->size - 1);
  world.master = {fields.text("store_host"),
                  fields.count("store_port", 0, 65535)};
  if (fields.has("restart_after_ms")) {
    world.restart_after = fields.time("restart_after_ms");
  }
  return {world};
}

MessageJson to_json(const Broken& broken) {
  MessageJson json{{"is", "broken"},
                   {"generation", broken.generation},
                   {"change", kChanges[static_cast<int>(broken.why.change)]},
                   {"host", cut(broken.why.host)}};
  if (!broken.why.how.empty()) {
    json["how"] = cut(broken.why.how);
  }
  return json;
}

Broken broken_of(MessageFields& fields) {
  Broken broken{.generation = fields.count("generation"),
                .why = {WorldBroken::Change::failed,
                        fields.text("host", kLongestReadText)}};
  if (fields.has("how")) {
    broken.why.how = fields.text("how", kLongestReadText);
  }
  const std::string change = fields.text("change");
  for (int index = 0; index < 4; ++index) {
    if (change == kChanges[index]) {
      broken.why.change = static_cast<WorldBroken::Change>(index);
    }
  }
  return broken;
}

MessageJson to_json(const JobClosed& closed) {
  MessageJson json{
      {"is", "closed"}, {"code", closed.exit_code}, {"text", cut(closed.text)}};
  if (closed.first) {
    json["rank"] = closed.first->rank;
    json["host"] = cut(closed.first->host);
  }
  return json;
}

JobClosed closed_of(MessageFields& fields) {
  JobClosed closed{fields.count("code", 0, 255),
                   fields.text("text", kLongestReadText)};
  if (fields.has("rank")) {
    closed.first = FirstFailure{fields.count("rank"),
                                fields.text("host", kLongestReadText)};
  }
  return closed;
}

MessageJson to_json(const RendezvousLost& lost) {
  return {{"is", "refused"}, {"text", cut(lost.text)}};
}

RendezvousLost lost_of(MessageFields& fields) {
  return {fields.text("text", kLongestReadText)};
}

}  // namespace launcher
