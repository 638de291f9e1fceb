#include "launcher/hosts/etcd/job_state.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "launcher/hosts/etcd/gateway.h"
#include "launcher/hosts/protocol/message_fields.h"

namespace launcher {
namespace {

using RecordJson = nlohmann::json;

constexpr size_t kMostRestartAges = 256;
constexpr size_t kLongestClosing = 2000;

RecordJson record_json(std::string_view text) {
  return text.size() > kLongestEtcdValue
             ? RecordJson(RecordJson::value_t::discarded)
             : RecordJson::parse(text.begin(),
                                 text.end(),
                                 /*cb=*/nullptr,
                                 /*allow_exceptions=*/false);
}

std::string record_text(const RecordJson& json) {
  return json.dump(/*indent=*/-1,
                   /*indent_char=*/' ',
                   /*ensure_ascii=*/false,
                   RecordJson::error_handler_t::replace);
}

bool read_ages(const RecordJson& json,
               std::vector<std::chrono::milliseconds>& ages) {
  const auto found = json.find("restart_ages_ms");
  if (found == json.end() || !found->is_array() ||
      found->size() > kMostRestartAges) {
    return false;
  }
  for (const RecordJson& age : *found) {
    const RecordJson one{{"age", age}};
    MessageFields fields(one);
    ages.push_back(fields.time("age"));
    if (!fields.are_valid()) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool operator==(const EtcdJobState& left, const EtcdJobState& right) {
  const auto closing_of = [](const EtcdJobState& record) {
    return record.closed
               ? std::pair(record.closed->exit_code, record.closed->text)
               : std::pair(-1, std::string());
  };
  return left.job == right.job && left.writer == right.writer &&
         left.generation == right.generation &&
         left.host_count == right.host_count &&
         left.restarts == right.restarts &&
         closing_of(left) == closing_of(right);
}

std::string encode(const CoordinatorPlace& place) {
  return record_text({{"id", place.id},
                      {"host", place.host},
                      {"address", place.endpoint.host},
                      {"port", place.endpoint.port}});
}

std::string encode(const EtcdJobState& record) {
  RecordJson ages = RecordJson::array();
  const size_t count = record.restart_ages.size();
  for (size_t at = count > kMostRestartAges ? count - kMostRestartAges : 0;
       at < count;
       ++at) {
    ages.push_back(record.restart_ages[at].count());
  }
  RecordJson json{{"job", record.job},
                  {"writer", record.writer},
                  {"host", record.host},
                  {"generation", record.generation},
                  {"host_count", record.host_count},
                  {"restarts", record.restarts},
                  {"restart_ages_ms", ages}};
  if (record.closed) {
    json["exit_code"] = record.closed->exit_code;
    json["closing"] = record.closed->text.substr(0, kLongestClosing);
  }
  return record_text(json);
}

std::optional<CoordinatorPlace> decode_place(std::string_view text) {
  const RecordJson json = record_json(text);
  if (!json.is_object()) {
    return std::nullopt;
  }
  MessageFields fields(json);
  const CoordinatorPlace place{
      .id = fields.text("id"),
      .host = fields.text("host"),
      .endpoint = {fields.text("address"), fields.count("port", 1, 65535)}};
  return fields.are_valid() && !place.endpoint.host.empty()
             ? std::optional(place)
             : std::nullopt;
}

std::optional<EtcdJobState> decode_job_state(std::string_view text) {
  const RecordJson json = record_json(text);
  if (!json.is_object()) {
    return std::nullopt;
  }
  MessageFields fields(json);
  EtcdJobState record{.job = fields.text("job"),
                      .writer = fields.text("writer"),
                      .host = fields.text("host")};
  record.generation = fields.count("generation", -1);
  record.host_count = fields.count("host_count");
  record.restarts =
      fields.count("restarts", 0, std::numeric_limits<int>::max());
  if (fields.has("exit_code")) {
    record.closed = JobClosed{fields.count("exit_code", 0, 255),
                              fields.text("closing", 4 * kLongestClosing)};
  }
  return read_ages(json, record.restart_ages) && fields.are_valid()
             ? std::optional(record)
             : std::nullopt;
}

}  // namespace launcher
