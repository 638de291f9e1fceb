#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace ddp::test {

/// Runs `work` in a child process and returns its status, as from waitpid.
template <class Work>
int status_of_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace ddp::test
