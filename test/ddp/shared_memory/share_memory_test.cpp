// How ranks come to map one memory.
#include "ddp/shared_memory/share_memory.h"

#include <sys/resource.h>

#include <torch/types.h>

#include "test/support/catch.h"
#include "test/support/local_ranks.h"

namespace ddp::detail {
namespace share_memory_test {

using test::Group;
using test::run_ranks;

void wait_for_all(const Group& group) {
  group->barrier(c10d::BarrierOptions())->wait();
}

TEST_CASE("ranks of one host map one memory") {
  const int size = GENERATE(2, 5);
  run_ranks(size, [&](const Group& group) {
    const int rank = group->getRank();
    const auto memory = share_memory(*group, host_name());
    TORCH_CHECK(memory && memory->ranks() == size);
    const auto own = memory->allocate(100, rank);
    *own = static_cast<std::byte>(rank + 1);
    TORCH_CHECK(memory->offset_of(own.get(), rank) == uint64_t{0});
    wait_for_all(group);
    for (int other = 0; other < size; ++other) {
      TORCH_CHECK(*memory->arena(other) == static_cast<std::byte>(other + 1));
      TORCH_CHECK(other == rank || !memory->offset_of(own.get(), other));
    }
    wait_for_all(group);
  });
}

TEST_CASE("a rank that wants no shared memory decides for all") {
  run_ranks(3, [](const Group& group) {
    const auto host = group->getRank() == 1 ? "" : host_name();
    TORCH_CHECK(!share_memory(*group, host));
  });
}

TEST_CASE("ranks on several hosts share nothing") {
  run_ranks(3, [](const Group& group) {
    const auto host = group->getRank() == 2 ? "other" : "first";
    TORCH_CHECK(!share_memory(*group, host));
  });
}

TEST_CASE("a rank alone shares nothing") {
  run_ranks(1, [](const Group& group) {
    TORCH_CHECK(!share_memory(*group, host_name()));
  });
}

/// Sets a limit of this process until the end of the scope.
class LimitGuard {
 public:
  LimitGuard(__rlimit_resource what, rlim_t value) : what_(what) {
    ::getrlimit(what_, &before_);
    const rlimit limit{value, before_.rlim_max};
    ::setrlimit(what_, &limit);
  }
  ~LimitGuard() { ::setrlimit(what_, &before_); }
  LimitGuard(const LimitGuard&) = delete;
  LimitGuard& operator=(const LimitGuard&) = delete;

 private:
  const __rlimit_resource what_;
  rlimit before_{};
};

TEST_CASE("where memory cannot be shared, no rank has it") {
  const LimitGuard small_files(RLIMIT_FSIZE, 1 << 20);
  run_ranks(2, [](const Group& group) {
    TORCH_CHECK(!share_memory(*group, host_name()));
    wait_for_all(group);
  });
}

}  // namespace share_memory_test
}  // namespace ddp::detail
