#include "launcher/hosts/protocol/message.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "launcher/base/overloaded.h"

namespace launcher {
namespace {

using MessageJson = nlohmann::json;

constexpr size_t kLongestToken = 1024;
constexpr size_t kLongestText = 2000;
// encode() replaces invalid bytes, which can make a text longer.
constexpr size_t kLongestReadText = 4 * kLongestText;

// Changes that a coordinator reports, in the order of the enum.
constexpr const char* kChanges[] = {"joined", "left", "vanished", "failed"};

std::string cut(const std::string& text) {
  return text.substr(0, kLongestText);
}

/// Reads the members of a JSON object from another host. A member that is
/// missing, has another type or is out of bounds is read as the least value,
/// and makes the object invalid.
class MessageFields {
 public:
  static constexpr size_t kLongestName = 256;

  /// @param object  must outlive this object
  explicit MessageFields(const nlohmann::json& object) : object_(object) {}

  bool are_valid() const { return are_valid_; }
  bool has(const char* name) const;

  int64_t integer(const char* name, int64_t least, int64_t most);
  int count(const char* name, int least = 0, int most = kLargestCount);
  bool truth(const char* name);
  std::string text(const char* name, size_t most = kLongestName);

 private:
  template <typename T>
  T fail(T value) {
    are_valid_ = false;
    return value;
  }

  const nlohmann::json& object_;
  bool are_valid_ = true;
};

bool MessageFields::has(const char* name) const {
  return object_.contains(name);
}

int64_t MessageFields::integer(const char* name, int64_t least, int64_t most) {
  const auto found = object_.find(name);
  if (found == object_.end() || !found->is_number_integer() ||
      (found->is_number_unsigned() && found->get<uint64_t>() > uint64_t{1}
                                                                   << 62)) {
    return fail(least);
  }
  const auto value = found->get<int64_t>();
  return value < least || value > most ? fail(least) : value;
}

int MessageFields::count(const char* name, int least, int most) {
  return static_cast<int>(integer(name, least, most));
}

bool MessageFields::truth(const char* name) {
  const auto found = object_.find(name);
  return found != object_.end() && found->is_boolean() ? found->get<bool>()
                                                       : fail(false);
}

std::string MessageFields::text(const char* name, size_t most) {
  const auto found = object_.find(name);
  if (found == object_.end() || !found->is_string() ||
      found->get_ref<const std::string&>().size() > most) {
    return fail(std::string());
  }
  return found->get<std::string>();
}

// Messages of a host.

MessageJson to_json(const Hello& hello) {
  MessageJson json{{"is", "hello"},
                   {"version", hello.version},
                   {"token", hello.token},
                   {"run_id", hello.terms.run_id},
                   {"least_hosts", hello.terms.least_hosts},
                   {"most_hosts", hello.terms.most_hosts},
                   {"max_restarts", hello.terms.max_restarts},
                   {"fixed_ranks", hello.terms.ranks_are_fixed},
                   {"id", hello.id},
                   {"host", hello.host},
                   {"role", hello.role},
                   {"workers", hello.worker_count},
                   {"keep_alive_ms", hello.keep_alive.count()}};
  if (hello.wanted_rank) {
    json["wanted_rank"] = *hello.wanted_rank;
  }
  return json;
}

Hello hello_of(MessageFields& fields) {
  Hello hello;
  hello.version = fields.count("version", 1);
  if (hello.version != kMessageVersion) {
    return hello;
  }
  hello.token = fields.text("token", kLongestToken);
  hello.terms.run_id = fields.text("run_id");
  hello.terms.least_hosts = fields.count("least_hosts", 1);
  hello.terms.most_hosts =
      fields.count("most_hosts", hello.terms.least_hosts, kLargestCount);
  hello.terms.max_restarts =
      fields.count("max_restarts", 0, std::numeric_limits<int>::max());
  hello.terms.ranks_are_fixed = fields.truth("fixed_ranks");
  hello.id = fields.text("id");
  hello.host = fields.text("host");
  hello.role = fields.text("role");
  hello.worker_count = fields.count("workers", 1);
  hello.keep_alive = std::chrono::milliseconds(
      fields.integer("keep_alive_ms", 1, std::numeric_limits<int>::max()));
  if (fields.has("wanted_rank")) {
    hello.wanted_rank = fields.count("wanted_rank");
  }
  return hello;
}

MessageJson to_json(const HostState& state) {
  MessageJson json{{"is", "state"},
                   {"number", state.number},
                   {"generation", state.generation},
                   {"host_rank", state.host_rank},
                   {"joins", state.joins},
                   {"store_host", state.store.host},
                   {"store_port", state.store.port}};
  if (state.outcome) {
    const auto* failed = std::get_if<HostFailed>(&*state.outcome);
    json["outcome"] = failed == nullptr ? "succeeded" : "failed";
    if (failed != nullptr) {
      json["rank"] = failed->rank;
      json["code"] = failed->status.code;
      json["signal"] = failed->status.signal;
      json["final"] = failed->is_final;
      json["reason"] = cut(failed->reason);
    }
  }
  return json;
}

HostState state_of(MessageFields& fields) {
  HostState state;
  state.number =
      fields.integer("number", 0, std::numeric_limits<int64_t>::max() / 2);
  state.generation = fields.count("generation", -1);
  state.host_rank = fields.count("host_rank", -1);
  state.joins = fields.truth("joins");
  state.store = {fields.text("store_host"),
                 fields.count("store_port", 0, 65535)};
  if (!fields.has("outcome")) {
    return state;
  }
  if (fields.text("outcome") == "succeeded") {
    state.outcome = HostSucceeded{};
  } else {
    HostFailed failed{.rank = fields.count("rank"), .status = {}};
    failed.status.code = fields.count("code", 0, 255);
    failed.status.signal =
        fields.count("signal", failed.status.code == 0 ? 1 : 0, 64);
    failed.is_final = fields.truth("final");
    failed.reason = fields.text("reason", kLongestReadText);
    state.outcome = failed;
  }
  return state;
}

MessageJson to_json(const Goodbye&) {
  return {{"is", "goodbye"}};
}

// Messages of the coordinator.

MessageJson to_json(const Noted& noted) {
  MessageJson json{{"is", "noted"}};
  if (!noted.waits_for.empty()) {
    json["waits_for"] = cut(noted.waits_for);
  }
  return json;
}

Noted noted_of(MessageFields& fields) {
  Noted noted;
  if (fields.has("waits_for")) {
    noted.waits_for = fields.text("waits_for", kLongestReadText);
  }
  return noted;
}

MessageJson to_json(const WorldFormed& formed) {
  const World& world = formed.world;
  const RoleRanks role =
      world.role.value_or(RoleRanks{world.first_rank, world.world_size});
  return {{"is", "formed"},
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

std::optional<Message> read_message(const std::string& is,
                                    MessageFields& fields) {
  if (is == "hello") {
    return hello_of(fields);
  }
  if (is == "state") {
    return state_of(fields);
  }
  if (is == "goodbye") {
    return Goodbye{};
  }
  if (is == "noted") {
    return noted_of(fields);
  }
  if (is == "formed") {
    return formed_of(fields);
  }
  if (is == "broken") {
    return broken_of(fields);
  }
  if (is == "closed") {
    return closed_of(fields);
  }
  if (is == "refused") {
    return lost_of(fields);
  }
  return std::nullopt;
}

}  // namespace

std::string encode(const Message& message) {
  const MessageJson json =
      std::visit([](const auto& known) { return to_json(known); }, message);
  return json.dump(/*indent=*/-1,
                   /*indent_char=*/' ',
                   /*ensure_ascii=*/false,
                   MessageJson::error_handler_t::replace) +
         "\n";
}

std::optional<Message> decode(std::string_view line) {
  if (line.size() > kLongestMessage) {
    return std::nullopt;
  }
  const MessageJson json = MessageJson::parse(
      line.begin(), line.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return std::nullopt;
  }
  MessageFields fields(json);
  const std::string is = fields.text("is");
  const auto message = read_message(is, fields);
  return fields.are_valid() ? message : std::nullopt;
}

}  // namespace launcher
