#include "launcher/machine/execution.h"

#include <cerrno>
#include <system_error>
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

std::string advice_for(int error) {
  switch (error) {
    case ENOENT:
      return "check that the interpreter which its first line names exists (a "
             "CR at the end of that line would be a part of the name)";
    case ENOEXEC:
      return "check that it was built for this machine";
    case EACCES:
    case EPERM:
      return "check that it and its interpreter may be executed, also where "
             "their file systems are mounted (noexec)";
    case E2BIG:
      return "its arguments and the environment are too long together; shorten "
             "them, or raise ulimit -s";
    case ETXTBSY:
      return "somebody is writing it; wait for the build or the copy to end";
    case ENOMEM:
    case EAGAIN:
      return "the host is at a limit; check ulimit -a, or start fewer workers";
    default:
      return "check the file";
  }
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

LaunchError exec_failure(const std::string& path, int error) {
  return LaunchError(error == ENOENT ? kExitNotFound : kExitNotExecutable,
                     "program " + path + " cannot be executed (" +
                         std::generic_category().message(error) + "); " +
                         advice_for(error));
}

LaunchError binding_failure(int error) {
  return LaunchError(
      kExitFailure,
      "a worker cannot be bound to its CPUs (" +
          std::generic_category().message(error) +
          "); were they taken away meanwhile? Leave --numa-binding out");
}

}  // namespace launcher
