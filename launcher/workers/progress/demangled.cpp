#include "launcher/workers/progress/demangled.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace launcher {
namespace {

constexpr std::string_view kOfNames =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.$";

}  // namespace

std::string demangled(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_not_of(kOfNames), text.size());
    const std::string word(text.substr(0, end));
    const std::unique_ptr<char, void (*)(void*)> name(
        word.rfind("_Z", 0) == 0
            ? abi::__cxa_demangle(word.c_str(), nullptr, nullptr, nullptr)
            : nullptr,
        std::free);
    result += name ? name.get() : word;
    text.remove_prefix(end);
    const size_t next = std::min(text.find_first_of(kOfNames), text.size());
    result += text.substr(0, next);
    text.remove_prefix(next);
  }
  return result;
}

}  // namespace launcher
