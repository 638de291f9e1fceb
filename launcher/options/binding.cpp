#include "launcher/options/binding.h"

#include <map>

#include "launcher/options/values.h"

namespace launcher {

const std::vector<std::string>& binding_names() {
  static const std::vector<std::string> names{
      "node", "socket", "exclusive", "core-complex"};
  return names;
}

Binding parse_binding(std::string_view text) {
  const std::map<std::string, Binding> bindings{
      {"node", Binding::node},
      {"socket", Binding::socket},
      {"exclusive", Binding::exclusive},
      {"core-complex", Binding::core_complex}};
  return bindings.at(parse_choice(text, binding_names()));
}

}  // namespace launcher
