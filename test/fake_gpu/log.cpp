#include "test/fake_gpu/log.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "test/fake_gpu/settings.h"

namespace fake_gpu {

void say(const std::string& text) {
  std::fprintf(stderr, "fake_gpu[%d]: %s\n", ::getpid(), text.c_str());
}

void fail(const std::string& text) {
  say(text);
  std::abort();
}

bool tracing() {
  return settings().trace;
}

}  // namespace fake_gpu
