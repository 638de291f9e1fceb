#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dp/parameter_server.h"

namespace dp::test {

/// Ranks that are threads of this process, over one HashStore.
class LocalWorld {
 public:
  explicit LocalWorld(int size)
      : size_(size), store_(c10::make_intrusive<c10d::HashStore>()) {}

  /// Runs `body(rank, options)` on each rank, with options that lead to this
  /// world. Returns what each rank threw, "" for nothing.
  std::vector<std::string> try_ranks(
      const ParameterServerOptions& options,
      const std::function<void(int, const ParameterServerOptions&)>& body) {
    std::vector<std::string> errors(size_);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          body(rank, at(rank, options));
        } catch (const c10::Error& error) {
          errors[rank] = error.what_without_backtrace();
        } catch (const std::exception& error) {
          errors[rank] = error.what();
        }
      });
    }
    for (auto& rank : ranks) {
      rank.join();
    }
    return errors;
  }

  /// The same, but throws the first error of any rank.
  void run_ranks(
      const ParameterServerOptions& options,
      const std::function<void(int, const ParameterServerOptions&)>& body) {
    const auto errors = try_ranks(options, body);
    for (size_t rank = 0; rank < errors.size(); ++rank) {
      if (!errors[rank].empty()) {
        throw std::runtime_error("rank " + std::to_string(rank) + ": " +
                                 errors[rank]);
      }
    }
  }

 private:
  ParameterServerOptions at(int rank, ParameterServerOptions options) const {
    ddp::WorkerEnv env;
    env.rank = rank;
    env.world_size = size_;
    return options.worker_env(env).store(store_);
  }

  int size_;
  c10::intrusive_ptr<c10d::HashStore> store_;
};

}  // namespace dp::test
