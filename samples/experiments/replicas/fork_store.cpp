#include "samples/experiments/replicas/fork_store.h"

#include <sys/mman.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <cerrno>

namespace samples {
namespace {

constexpr int kAnyNumber = -1;  // number of processes

}  // namespace

ForkStore::ForkStore() : file_(::memfd_create("fork_store", MFD_CLOEXEC)) {
  TORCH_CHECK(file_ >= 0,
              "Expected memory to share with forked processes, but got: ",
              std::strerror(errno));
}

ForkStore::~ForkStore() {
  ::close(file_);
}

c10::intrusive_ptr<c10d::Store> ForkStore::open() const {
  return c10::make_intrusive<c10d::FileStore>(
      "/proc/self/fd/" + std::to_string(file_), kAnyNumber);
}

}  // namespace samples
