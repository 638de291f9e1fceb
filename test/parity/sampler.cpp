// Reads lines "size world rank shuffle seed epoch drop_last" and prints the
// sampler's indices for each.
#include <iostream>

#include "ddp/data/distributed_sampler.h"
#include "test/parity/parity.h"

namespace parity {

int sampler(const Arguments&) {
  size_t size = 0;
  int64_t world = 0;
  int64_t rank = 0;
  bool shuffle = false;
  int64_t seed = 0;
  int64_t epoch = 0;
  bool drop_last = false;
  while (std::cin >> size >> world >> rank >> shuffle >> seed >> epoch >>
         drop_last) {
    ddp::DistributedSampler sampler(size,
                                    ddp::DistributedSamplerOptions()
                                        .num_replicas(world)
                                        .rank(rank)
                                        .shuffle(shuffle)
                                        .seed(static_cast<uint64_t>(seed))
                                        .drop_last(drop_last));
    sampler.set_epoch(epoch);
    sampler.reset();
    while (const auto index = sampler.next(1)) {
      std::cout << index->front() << ' ';
    }
    std::cout << '\n';
  }
  return 0;
}

}  // namespace parity
