#include "ddp/base/job_files/job_directory.h"

#include <cstdlib>

#include "ddp/base/cluster/worker_env.h"

namespace ddp::detail {

JobFiles files_of_rank(const std::string& directory, const std::string& rank) {
  return {directory + "/progress_" + rank,
          directory + "/stop_" + rank,
          directory + "/stop_signal"};
}

JobFiles own_job_files() {
  const char* directory = std::getenv(env::kJobDir);
  const char* rank = std::getenv(env::kRank);
  return directory != nullptr && *directory != '\0' && rank != nullptr
             ? files_of_rank(directory, rank)
             : JobFiles();
}

}  // namespace ddp::detail
