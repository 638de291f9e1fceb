#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/machine/affinity.h"

namespace launcher {

/// Runs scripts.
inline constexpr const char* kShell = "/bin/sh";

/// Variables as execve() takes them, for all processes that inherit them.
class InheritedVariables {
 public:
  explicit InheritedVariables(const Environment& environment);

  /// "NAME=value" of those that `changes` does not set. They live as long as
  /// this.
  std::vector<char*> except(const Environment& changes) const;

 private:
  std::map<std::string, std::string> texts_;  // by name
};

/// All that a child needs of memory to become its program. To be made before
/// the fork: the child may make async-signal-safe calls alone.
class Execution {
 public:
  /// @param inherited must outlive this
  Execution(std::string path,
            std::vector<std::string> argv,
            const InheritedVariables& inherited,
            const Environment& changes,
            const std::vector<int>& cpus);
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  const char* path() const { return path_.c_str(); }
  char* const* argv() const { return argv_.data(); }
  /// Of /bin/sh, for a script that names no interpreter.
  char* const* script_argv() const { return script_argv_.data(); }
  char* const* environment() const { return environment_.data(); }
  const CpuSet& cpus() const { return cpus_; }

 private:
  std::string path_;
  std::vector<std::string> argv_texts_;
  std::vector<std::string> changed_texts_;
  std::vector<char*> argv_;         // into the texts, with a nullptr at the end
  std::vector<char*> script_argv_;  // so, too
  std::vector<char*> environment_;
  CpuSet cpus_;
};

}  // namespace launcher
