#include "test/fake_gpu/cudart/operators_library.h"

#include <dlfcn.h>

#include <mutex>
#include <string>

#include "test/fake_gpu/log.h"

namespace fake_gpu {
namespace {

bool is_loaded(const char* library) {
  void* handle = ::dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) {
    ::dlclose(handle);
  }
  return handle != nullptr;
}

std::string own_folder() {
  Dl_info info{};
  ::dladdr(reinterpret_cast<void*>(&load_operators), &info);
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/'));
}

}  // namespace

void load_operators() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!is_loaded("libtorch_cuda.so")) {
      return;
    }
    const std::string path = own_folder() + "/libfake_gpu_operators.so";
    if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
      fail(::dlerror());
    }
  });
}

}  // namespace fake_gpu
