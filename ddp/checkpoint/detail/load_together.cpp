#include "ddp/checkpoint/detail/load_together.h"

#include "ddp/job/error_text.h"

namespace ddp::detail {

std::string read_together(const std::string& path,
                          const Ranks& ranks,
                          TorchFile& file) {
  const auto error =
      ranks.first_of(ranks.try_on_all([&] { file = read_torch_file(path); }));
  if (!error.empty()) {
    return error;
  }
  const auto ids = ranks.gather(file.content_id);
  for (size_t rank = 1; rank < ids.size(); ++rank) {
    if (ids[rank] != ids[0]) {
      return "Cannot load " + path + ": rank 0 and rank " +
             std::to_string(rank) +
             " see different files there; put it on a file system that all "
             "ranks share, or copy rank 0's file to every host";
    }
  }
  return "";
}

void apply_on_all_ranks(const std::string& path,
                        const TorchFile& file,
                        CheckpointParts& parts,
                        const Ranks& ranks) {
  CheckpointUpdate update;
  ranks.run_on_all([&] {
    update = explain("Cannot load " + path, [&] {
      return check(file.value, parts, ranks.rank(), ranks.size());
    });
  });
  parts.apply(update);
}

}  // namespace ddp::detail
