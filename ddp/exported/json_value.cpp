#include "ddp/exported/json_value.h"

#include <limits>

#include <nlohmann/json.hpp>

#include <c10/util/Exception.h>

namespace ddp::detail {
namespace {

constexpr int kDeepest = 200;
constexpr size_t kShownBytes = 60;

}  // namespace

JsonValue::JsonValue(std::shared_ptr<const nlohmann::json> root,
                     const nlohmann::json* value,
                     std::string place)
    : root_(std::move(root)), value_(value), place_(std::move(place)) {}

JsonValue JsonValue::parse(const std::string& text, const std::string& name) {
  const auto check_depth =
      [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
        TORCH_CHECK(depth <= kDeepest,
                    "Expected ",
                    name,
                    " to be nested at most ",
                    kDeepest,
                    " deep, but got more");
        return true;
      };
  try {
    auto root = std::make_shared<const nlohmann::json>(
        nlohmann::json::parse(text, check_depth));
    const auto* value = root.get();
    return {std::move(root), value, name};
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK(
        false, "Expected ", name, " to be JSON, but got: ", error.what());
  }
}

void JsonValue::expect(bool is_so, const char* expected) const {
  if (!is_so) {
    refuse(expected);
  }
}

JsonValue JsonValue::at(const std::string& key) const {
  const auto found = find(key);
  if (!found) {
    refuse("an object with \"" + key + "\"");
  }
  return *found;
}

std::optional<JsonValue> JsonValue::find(const std::string& key) const {
  expect(value_->is_object(), "an object");
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) {
    return std::nullopt;
  }
  return JsonValue(root_, &*found, place_ + "." + key);
}

std::vector<JsonValue> JsonValue::elements() const {
  expect(value_->is_array(), "an array");
  std::vector<JsonValue> elements;
  elements.reserve(value_->size());
  for (const auto& element : *value_) {
    elements.push_back({root_,
                        &element,
                        place_ + "[" + std::to_string(elements.size()) + "]"});
  }
  return elements;
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::members() const {
  expect(value_->is_object(), "an object");
  std::vector<std::pair<std::string, JsonValue>> members;
  for (const auto& [key, value] : value_->items()) {
    members.emplace_back(key, JsonValue(root_, &value, place_ + "." + key));
  }
  return members;
}

std::pair<std::string, JsonValue> JsonValue::only_member() const {
  expect(value_->is_object() && value_->size() == 1,
         "an object with one member");
  return members().front();
}

int64_t JsonValue::integer() const {
  expect(value_->is_number_integer(), "an integer");
  return value_->get<int64_t>();
}

double JsonValue::number() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (*value_ == "Infinity" || *value_ == "-Infinity") {
    return *value_ == "Infinity" ? kInfinity : -kInfinity;
  }
  if (*value_ == "NaN") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  expect(value_->is_number(), "a number");
  return value_->get<double>();
}

bool JsonValue::boolean() const {
  expect(value_->is_boolean(), "true or false");
  return value_->get<bool>();
}

const std::string& JsonValue::text() const {
  expect(value_->is_string(), "a string");
  return value_->get_ref<const std::string&>();
}

void JsonValue::refuse(const std::string& expected) const {
  std::string shown =
      value_->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (shown.size() > kShownBytes) {
    shown = shown.substr(0, kShownBytes) + "...";
  }
  TORCH_CHECK(
      false, "Expected ", place_, " to be ", expected, ", but got ", shown);
}

}  // namespace ddp::detail
