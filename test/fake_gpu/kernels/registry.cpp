#include "test/fake_gpu/kernels/registry.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "test/fake_gpu/log.h"

namespace fake_gpu {
namespace {

struct Kernel {
  const char* mangled = nullptr;
  std::string name;  // demangled at first use, because there are many kernels
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Kernel> kernels;
};

/// Returns the registry. It is filled while libraries are loaded, possibly
/// before static objects are constructed.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

std::string demangled(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : mangled;
}

}  // namespace

void register_kernel(const void* host, const char* mangled_name) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.kernels[host].mangled = mangled_name;
}

const std::string& kernel_name(const void* host) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto place = r.kernels.find(host);
  if (place == r.kernels.end()) {
    fail("a kernel was launched that nobody registered");
  }
  Kernel& kernel = place->second;
  if (kernel.name.empty()) {
    kernel.name = demangled(kernel.mangled);
  }
  return kernel.name;
}

}  // namespace fake_gpu
