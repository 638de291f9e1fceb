#include "dp/servers/detail/session.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <c10/core/GradMode.h>

#include "ddp/base/partition_whole.h"
#include "ddp/job/current_job.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/process_group.h"
#include "ddp/job/state_sync.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"
#include "ddp/tensors/overlap.h"
#include "dp/servers/detail/shard.h"

namespace dp::detail {
namespace {

void verify_options(c10d::Backend& all, const ParameterServerOptions& options) {
  const bool is_synchronous = options.mode() == UpdateMode::synchronous;
  std::vector<std::string> lines{
      c10::str("servers ", options.servers()),
      c10::str("mode ", is_synchronous ? "synchronous" : "asynchronous"),
      c10::str("checkpoint_every ", options.checkpoint_every()),
      c10::str("resume ", options.resume() ? "true" : "false")};
  if (!is_synchronous) {
    lines.push_back(c10::str("staleness_bound ", options.staleness_bound()));
  }
  ddp::detail::verify_across_ranks(all,
                                   c10::kCPU,
                                   lines,
                                   "options of the parameter servers",
                                   "give all ranks the same ones");
}

}  // namespace

void check(const ParameterServerOptions& options) {
  const int size = ddp::world_size();
  TORCH_CHECK(options.servers() >= 1 && options.servers() < size,
              "Expected at least one server and one worker, but got ",
              options.servers(),
              options.servers() == 1 ? " server" : " servers",
              " in a world of ",
              size,
              size == 1 ? " rank" : " ranks",
              "; start more ranks, or fewer servers");
  TORCH_CHECK(options.staleness_bound() >= 0,
              "Expected a staleness_bound of 0 or more, but got ",
              options.staleness_bound());
  TORCH_CHECK(options.checkpoint_every() >= 0,
              "Expected a checkpoint_every of 0 or more, but got ",
              options.checkpoint_every());
  TORCH_CHECK(!options.checkpoint().empty() ||
                  (options.checkpoint_every() == 0 && !options.resume()),
              "Expected a path in checkpoint() with checkpoint_every() and "
              "resume(), but got none");
}

Session::Session(torch::nn::Module& module,
                 const ParameterServerOptions& options)
    : servers_(options.servers()),
      workers_(ddp::world_size() - options.servers()) {
  std::vector<int> ranks(ddp::world_size());
  std::iota(ranks.begin(), ranks.end(), 0);
  all_ = ddp::detail::new_group(ranks, "gloo");
  verify_options(*all_, options);
  equalize(module);
  make_shards(module);
  connect_pairs();
}

Session::~Session() {
  abort();
  for (const auto& pair : pairs_) {
    pair->shutdown();
  }
  all_->shutdown();
}

// The broadcast uses CPU memory, because the ranks may have different devices.
void Session::equalize(torch::nn::Module& module) const {
  auto state = ddp::detail::distinct_tensors(module.named_parameters());
  const auto buffers = ddp::detail::distinct_tensors(module.named_buffers());
  ddp::detail::verify_across_ranks(*all_,
                                   c10::kCPU,
                                   ddp::detail::describe_all(state, buffers),
                                   "module",
                                   "build it in the same way on every rank");
  state.insert(state.end(), buffers.begin(), buffers.end());
  const auto tensors = ddp::detail::tensors_of(state);
  const ShardMessage copies(tensors);
  copy_all(tensors, copies.tensors());
  const c10::NoGradGuard no_grad;
  ddp::detail::broadcast_from(0, *all_, {copies.flat()});
  copy_all(copies.tensors(), tensors);
}

void Session::make_shards(const torch::nn::Module& module) {
  std::vector<at::Tensor> trained;
  std::vector<int64_t> bytes;
  for (const auto& item :
       ddp::detail::distinct_tensors(module.named_parameters())) {
    if (item.tensor.requires_grad()) {
      trained.push_back(item.tensor);
      // A byte for each empty parameter, so that these are also spread.
      bytes.push_back(
          std::max<int64_t>(static_cast<int64_t>(item.tensor.nbytes()), 1));
    }
  }
  TORCH_CHECK(trained.size() >= static_cast<size_t>(servers_),
              "Expected at most as many servers as parameters that require a "
              "gradient, but got ",
              servers_,
              " for ",
              trained.size(),
              trained.size() == 1 ? " parameter" : " parameters");
  ddp::detail::expect_no_overlap(trained);
  // Whole parameters, because some optimizers need them.
  std::vector<int64_t> loads(servers_);
  const auto owners = ddp::detail::partition_whole(bytes, loads);
  shards_.resize(servers_);
  for (size_t i = 0; i < trained.size(); ++i) {
    shards_[owners[i]].push_back(trained[i]);
  }
}

void Session::connect_pairs() {
  for (int server = 0; server < servers_; ++server) {
    for (int worker = 0; worker < workers_; ++worker) {
      auto pair = ddp::detail::new_group({server, servers_ + worker}, "gloo");
      if (pair) {
        pairs_.push_back(std::move(pair));
      }
    }
  }
}

Session::Work Session::start(int peer,
                             const at::Tensor& message,
                             int from) const {
  std::vector<at::Tensor> tensors{message};
  c10d::BroadcastOptions options;
  options.rootRank = from;
  return pairs_[peer]->broadcast(tensors, options);
}

void Session::wait(int peer, const Work& work) const {
  const bool is_server = ddp::rank() < servers_;
  ddp::detail::wait(
      work,
      *pairs_[peer],
      "a message with " + name_of(is_server ? servers_ + peer : peer));
}

void Session::abort() const {
  for (const auto& pair : pairs_) {
    pair->abort();
  }
}

std::string Session::name_of(int rank) const {
  return rank < servers_
             ? c10::str("parameter server ", rank, " (rank ", rank, ")")
             : c10::str("worker ", rank - servers_, " (rank ", rank, ")");
}

std::string Session::departure_of(const std::vector<int>& ranks) const {
  const auto state = ddp::detail::peer_state_of(*all_);
  const auto left = state->first_departure(ranks);
  return left && left->how != ddp::detail::Departure::How::left
             ? name_of(left->rank) +
                   " is gone: " + describe(*left, state->passes())
             : "";
}

}  // namespace dp::detail
