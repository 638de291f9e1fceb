#include "samples/support/program.h"

#include <c10/util/Exception.h>
#include <ddp/process_group.h>

#include <iostream>

namespace samples {
namespace {

int report(const std::string& name, const std::string& what) {
  const auto rank = ddp::is_initialized()
                        ? " (rank " + std::to_string(ddp::rank()) + ")"
                        : "";
  std::cerr << name + rank + ": " + what + "\n" << std::flush;
  return 1;
}

}  // namespace

int run_program(const std::string& name, const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const c10::Error& error) {
    return report(name, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return report(name, error.what());
  }
}

}  // namespace samples
