#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/base/environment.h"
#include "launcher/base/error.h"
#include "launcher/machine/topology.h"

namespace launcher {

/// Interpreter for scripts.
inline constexpr const char* kShell = "/bin/sh";

/// Environment variables in the format of execve(), shared by all processes
/// that inherit them.
class InheritedVariables {
 public:
  explicit InheritedVariables(const Environment& environment);

  /// Returns "NAME=value" for the variables that `changes` does not set. The
  /// pointers are valid for this object's lifetime.
  std::vector<char*> except(const Environment& changes) const;

 private:
  std::map<std::string, std::string> texts_;  // by name
};

/// Memory that a child needs to execute its program. Created before the fork:
/// the child may make only async-signal-safe calls.
class Execution {
 public:
  /// @param inherited must outlive this object
  Execution(std::string path,
            std::vector<std::string> argv,
            const InheritedVariables& inherited,
            const Environment& changes,
            const std::vector<int>& cpus);
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  const char* path() const { return path_.c_str(); }
  char* const* argv() const { return argv_.data(); }
  /// Arguments for /bin/sh, for a script without an interpreter line.
  char* const* script_argv() const { return script_argv_.data(); }
  char* const* environment() const { return environment_.data(); }
  const CpuSet& cpus() const { return cpus_; }

 private:
  std::string path_;
  std::vector<std::string> argv_texts_;
  std::vector<std::string> changed_texts_;
  std::vector<char*> argv_;         // pointers into the texts, then nullptr
  std::vector<char*> script_argv_;  // pointers into the texts, then nullptr
  std::vector<char*> environment_;
  CpuSet cpus_;
};

/// Explains why an existing program could not be executed, with a remedy. Pure
/// function.
///
/// @param error errno of execve()
LaunchError exec_failure(const std::string& path, int error);

/// Explains why a worker could not be bound to its CPUs, with a remedy. Pure
/// function.
///
/// @param error errno of CpuSet::bind()
LaunchError binding_failure(int error);

}  // namespace launcher
