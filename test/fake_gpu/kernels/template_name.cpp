#include "test/fake_gpu/kernels/template_name.h"

namespace fake_gpu {
namespace {

std::string trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(' ');
  const auto end = text.find_last_not_of(' ');
  return begin == std::string_view::npos
             ? std::string()
             : std::string(text.substr(begin, end - begin + 1));
}

}  // namespace

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

std::vector<std::string> template_arguments(std::string_view name,
                                            std::string_view what) {
  std::vector<std::string> result;
  const auto place = name.find(std::string(what) + "<");
  if (place == std::string_view::npos) {
    return result;
  }
  int depth = 0;
  size_t begin = place + what.size() + 1;
  for (size_t i = begin; i < name.size(); ++i) {
    const char c = name[i];
    const bool ends = depth == 0 && (c == ',' || c == '>');
    if (ends) {
      result.push_back(trimmed(name.substr(begin, i - begin)));
      begin = i + 1;
      if (c == '>') {
        return result;
      }
    } else if (c == '<' || c == '(') {
      ++depth;
    } else if (c == '>' || c == ')') {
      --depth;
    }
  }
  return {};
}

}  // namespace fake_gpu
