#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace ddp::detail {

/// A value of a JSON text that may be damaged. Each getter throws c10::Error if
/// the value is of another kind. The error names the place in the text, the
/// expected kind and the value there. Cheap to copy.
class JsonValue {
 public:
  /// Parses a text.
  /// @param name  of the text, which begins each place.
  /// @throws c10::Error if the text is no JSON, or nested deeper than 200.
  static JsonValue parse(const std::string& text, const std::string& name);

  /// The member of an object, which is not null.
  JsonValue at(const std::string& key) const;
  /// The member of an object, or std::nullopt if it is missing or null.
  std::optional<JsonValue> find(const std::string& key) const;
  /// The elements of an array.
  std::vector<JsonValue> elements() const;
  /// The members of an object.
  std::vector<std::pair<std::string, JsonValue>> members() const;
  /// The member of an object that has one: {"as_int": 3}.
  std::pair<std::string, JsonValue> only_member() const;

  int64_t integer() const;
  /// A number, or "Infinity", "-Infinity" and "NaN" as torch.export writes
  /// them.
  double number() const;
  bool boolean() const;
  const std::string& text() const;

  /// @throws c10::Error: "Expected <place> to be <expected>, but got <value>".
  [[noreturn]] void refuse(const std::string& expected) const;

 private:
  JsonValue(std::shared_ptr<const nlohmann::json> root,
            const nlohmann::json* value,
            std::string place);
  void expect(bool is_so, const char* expected) const;

  std::shared_ptr<const nlohmann::json> root_;
  const nlohmann::json* value_;
  std::string place_;
};

}  // namespace ddp::detail
