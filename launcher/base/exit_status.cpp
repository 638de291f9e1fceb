#include "launcher/base/exit_status.h"

#include <csignal>
#include <iterator>

namespace launcher {
namespace {

struct Name {
  int number;
  std::string_view name;
};

// sigabbrev_np() would need glibc 2.32.
constexpr Name kNames[] = {
    {SIGHUP, "SIGHUP"},       {SIGINT, "SIGINT"},       {SIGQUIT, "SIGQUIT"},
    {SIGILL, "SIGILL"},       {SIGTRAP, "SIGTRAP"},     {SIGABRT, "SIGABRT"},
    {SIGBUS, "SIGBUS"},       {SIGFPE, "SIGFPE"},       {SIGKILL, "SIGKILL"},
    {SIGUSR1, "SIGUSR1"},     {SIGSEGV, "SIGSEGV"},     {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"},     {SIGALRM, "SIGALRM"},     {SIGTERM, "SIGTERM"},
    {SIGSTKFLT, "SIGSTKFLT"}, {SIGCHLD, "SIGCHLD"},     {SIGCONT, "SIGCONT"},
    {SIGSTOP, "SIGSTOP"},     {SIGTSTP, "SIGTSTP"},     {SIGTTIN, "SIGTTIN"},
    {SIGTTOU, "SIGTTOU"},     {SIGURG, "SIGURG"},       {SIGXCPU, "SIGXCPU"},
    {SIGXFSZ, "SIGXFSZ"},     {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"},
    {SIGWINCH, "SIGWINCH"},   {SIGIO, "SIGIO"},         {SIGPWR, "SIGPWR"},
    {SIGSYS, "SIGSYS"},
};

}  // namespace

std::string signal_name(int number) {
  for (const Name& entry : kNames) {
    if (entry.number == number) {
      return std::string(entry.name);
    }
  }
  return "signal " + std::to_string(number);
}

int signal_number(std::string_view name) {
  for (const Name& entry : kNames) {
    if (name == entry.name || name == entry.name.substr(3)) {
      return entry.number;
    }
  }
  return 0;
}

}  // namespace launcher
