#include "launcher/machine/execution.h"

#include <utility>

namespace launcher {
namespace {

void add_pointers(std::vector<std::string>& texts,
                  std::vector<char*>& pointers) {
  pointers.reserve(pointers.size() + texts.size() + 1);
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
}

}  // namespace

InheritedVariables::InheritedVariables(const Environment& environment) {
  for (const auto& [name, value] : environment) {
    texts_.emplace(name, name + "=" + value);
  }
}

std::vector<char*> InheritedVariables::except(
    const Environment& changes) const {
  std::vector<char*> result;
  result.reserve(texts_.size() + changes.size() + 1);
  for (const auto& [name, text] : texts_) {
    if (changes.count(name) == 0) {
      // execve() does not modify the strings.
      result.push_back(const_cast<char*>(text.c_str()));
    }
  }
  return result;
}

Execution::Execution(std::string path,
                     std::vector<std::string> argv,
                     const InheritedVariables& inherited,
                     const Environment& changes,
                     const std::vector<int>& cpus)
    : path_(std::move(path)),
      argv_texts_(std::move(argv)),
      environment_(inherited.except(changes)),
      cpus_(cpus) {
  changed_texts_.reserve(changes.size());
  for (const auto& [name, value] : changes) {
    changed_texts_.push_back(name + "=" + value);
  }
  add_pointers(argv_texts_, argv_);
  script_argv_ = {const_cast<char*>(kShell), path_.data()};
  script_argv_.insert(script_argv_.end(),
                      argv_.begin() + (argv_texts_.empty() ? 0 : 1),
                      argv_.end());
  add_pointers(changed_texts_, environment_);
}

}  // namespace launcher
