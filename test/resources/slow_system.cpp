// To be preloaded into ddprun: a name service and a file system that do not
// answer. Says on stderr what waits, then waits for ever.
#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

namespace {

[[noreturn]] void wait_for_ever(const char* text, size_t size) {
  write(2, text, size);
  for (;;) {
    pause();
  }
}

}  // namespace

extern "C" int getaddrinfo(const char* host,
                           const char* service,
                           const addrinfo* hints,
                           addrinfo** found) {
  if ((hints->ai_flags & AI_NUMERICHOST) == 0) {
    wait_for_ever("looking up\n", 11);
  }
  using Function = decltype(&getaddrinfo);
  const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return next(host, service, hints, found);
}

extern "C" int execvpe(const char*, char* const[], char* const[]) {
  wait_for_ever("executing\n", 10);
}
