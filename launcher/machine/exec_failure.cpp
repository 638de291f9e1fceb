#include "launcher/machine/exec_failure.h"

#include <cerrno>
#include <system_error>

namespace launcher {
namespace {

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
