#include "launcher/machine/affinity.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace launcher {
namespace {

constexpr size_t kBitsOfWord = sizeof(unsigned long) * CHAR_BIT;

}  // namespace

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  // Double the size until the kernel's mask fits.
  for (int most = CPU_SETSIZE; most <= (1 << 20) && cpus.empty(); most *= 2) {
    cpu_set_t* set = CPU_ALLOC(most);
    const size_t size = CPU_ALLOC_SIZE(most);
    if (::sched_getaffinity(0, size, set) == 0) {
      for (int cpu = 0; cpu < most; ++cpu) {
        if (CPU_ISSET_S(cpu, size, set)) {
          cpus.push_back(cpu);
        }
      }
    }
    CPU_FREE(set);
  }
  if (cpus.empty()) {
    cpus.push_back(0);
  }
  return cpus;
}

CpuSet::CpuSet(const std::vector<int>& cpus) {
  for (const int cpu : cpus) {
    const size_t word = static_cast<size_t>(cpu) / kBitsOfWord;
    bits_.resize(std::max(bits_.size(), word + 1));
    bits_[word] |= 1UL << (static_cast<size_t>(cpu) % kBitsOfWord);
  }
}

int CpuSet::bind() const {
  if (bits_.empty()) {
    return 0;
  }
  // Override a memory policy set by the caller's numactl. Errors are ignored:
  // if a sandbox forbids the call, memory is mostly local anyway.
  constexpr int kPreferred = 1;  // without nodes: the local node
  ::syscall(SYS_set_mempolicy, kPreferred, nullptr, 0);
  const long result = ::syscall(SYS_sched_setaffinity,
                                0,
                                bits_.size() * sizeof(unsigned long),
                                bits_.data());
  return result < 0 ? errno : 0;
}

}  // namespace launcher
