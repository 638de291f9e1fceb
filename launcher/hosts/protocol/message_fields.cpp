#include "launcher/hosts/protocol/message_fields.h"

#include <nlohmann/json.hpp>

namespace launcher {

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

}  // namespace launcher
