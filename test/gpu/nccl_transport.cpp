#include "test/gpu/nccl_ranks.h"
#include "test/support/transports.h"

namespace ddp::test {

const std::vector<Transport>& transports() {
  static const std::vector<Transport> all{
      {"NCCL",
       /*is_gpu=*/true,
       has_gpus,
       [](int size, const Transport::Body& body) {
         return try_nccl_ranks(size, [&](const NcclRank& rank) {
           body(rank.group, rank.device);
         });
       }}};
  return all;
}

}  // namespace ddp::test
