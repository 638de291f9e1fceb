// Runs steps for callgrind, without peers and without threads of the library.
// Warms up first; count the instructions of measured_steps() only
// (--toggle-collect=measured_steps).
#include <iostream>

#include "test/bench/arms.h"
#include "test/support/fake_backend.h"

constexpr int kWarmUp = 3;  // buckets are rebuilt in the second step

extern "C" __attribute__((noinline)) void measured_steps(ddp::bench::Arm& arm,
                                                         int steps) {
  for (int i = 0; i < steps; ++i) {
    arm.step();
  }
}

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: bench_instructions mlp|small ARM STEPS\n";
    return 2;
  }
  const auto arm = ddp::bench::make_arm(
      argv[2],
      ddp::bench::workload(argv[1]),
      c10::make_intrusive<ddp::test::FakeBackend>(/*size=*/2));
  for (int i = 0; i < kWarmUp; ++i) {
    arm->step();
  }
  measured_steps(*arm, std::stoi(argv[3]));
}
