#include "dp/servers/parameter_server.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "ddp/base/block_signals.h"
#include "ddp/base/job_files/progress_file.h"
#include "ddp/checkpoint/checkpoint_folder.h"
#include "ddp/job/collectives.h"
#include "ddp/job/current_job.h"
#include "ddp/job/error_text.h"
#include "ddp/job/process_group.h"
#include "ddp/job/wait.h"
#include "dp/base/thread_error.h"
#include "dp/servers/detail/session.h"
#include "dp/servers/detail/shard.h"
#include "dp/servers/detail/staleness_gate.h"

namespace dp {
namespace {

using detail::Request;
using detail::Session;

/// Interval at which a waiting server looks for ranks that have left.
constexpr std::chrono::milliseconds kPollInterval{500};

/// A group of this rank alone: each server saves and loads by itself.
class ThisRank : public c10d::Backend {
 public:
  ThisRank() : Backend(/*rank=*/0, /*size=*/1) {}
};

/// The checkpoints of one server: its module and its optimizer.
class SavedServer {
 public:
  SavedServer(torch::nn::Module& module,
              torch::optim::Optimizer& optimizer,
              const ParameterServerOptions& options)
      : folder_(folder_of(options),
                ddp::CheckpointFolderOptions().keep_last(2)),
        // Not owned: `serve` got a reference, and the pointer ends before it.
        checkpoint_(std::shared_ptr<torch::nn::Module>(std::shared_ptr<void>(),
                                                       &module)) {
    checkpoint_.add("optimizer", optimizer)
        .process_group(c10::make_intrusive<ThisRank>());
    TORCH_CHECK(options.checkpoint_every() == 0 || options.resume() ||
                    ::access(folder_of(options).c_str(), F_OK) != 0,
                "Expected no checkpoints of another training, but there is ",
                folder_of(options),
                "; resume(true) continues that training, or remove it");
  }

  void save(int64_t updates) { folder_.save(checkpoint_.step(updates)); }

  /// Loads the newest checkpoint after at most `most` updates. Returns its
  /// number of updates, or -1.
  int64_t load(int64_t most = std::numeric_limits<int64_t>::max()) {
    return folder_.load(checkpoint_, most) ? checkpoint_.step() : -1;
  }

 private:
  static std::string folder_of(const ParameterServerOptions& options) {
    return options.checkpoint() + "." + std::to_string(ddp::rank());
  }

  ddp::CheckpointFolder folder_;
  ddp::Checkpoint checkpoint_;
};

/// Reports to all ranks why this server ends the job. Returns the text.
std::string announce(const Session& session, const std::string& why) {
  auto text = session.name_of(ddp::rank()) + " ended: " + why;
  ddp::detail::report_fatal_error(text);
  return text;
}

/// One server. A thread for each worker receives its requests, and the thread
/// that called `serve` makes the updates. One lock guards everything except the
/// messages on their way.
class Server {
 public:
  Server(const Session& session,
         torch::nn::Module& module,
         const OptimizerFactory& make_optimizer,
         const ParameterServerOptions& options);
  /// Serves until all workers have finished or the job has failed. Returns the
  /// error, which all ranks get, or "".
  std::string run();
  const ServerReport& report() const { return report_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  enum class Status { here, finished, lost };
  struct Worker {
    Status status = Status::here;
    int64_t pushes = 0;
    int64_t awaited = 0;  // number of the request that is awaited; 0: none
  };

  void resume();
  void start_threads();
  void make_updates();
  std::optional<Update> next_update();
  void make(const Update& update);

  void serve_worker(int worker);
  bool serve_request(int worker);
  void send_parameters(int worker);
  void receive_gradients(int worker);
  void send_final_parameters(int worker);
  void on_loss(int worker, const std::string& why);

  /// Waits for a message with a worker.
  void exchange(int worker, const at::Tensor& message, int from) const;
  Request receive_request(int worker);
  template <class Ready>
  void wait(Lock& lock, const Ready& ready);
  /// Ends the job; the first reason counts.
  void fail(const std::string& why);
  void check_pushes();
  void check_departures();
  bool is_any(Status status) const;
  int first_awaited() const;
  /// The gradients of a worker. Synchronous: worker 0's become the sum.
  const detail::ShardMessage& gradients_of(int worker) const {
    return gradients_[is_synchronous_ ? std::min(worker, 1) : worker];
  }
  std::string name_of(int worker) const {
    return session_.name_of(session_.servers() + worker);
  }

  const ParameterServerOptions& options_;
  const bool is_synchronous_;
  const Session& session_;
  const std::vector<at::Tensor>& shard_;  // of the module
  detail::ShardMessage parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<SavedServer> saved_;
  std::vector<detail::ShardMessage> gradients_;
  std::vector<std::thread> threads_;  // by worker

  std::mutex mutex_;  // guards the following, and parameters_ if asynchronous
  std::condition_variable changed_;
  std::vector<Worker> workers_;
  detail::StalenessGate gate_;  // asynchronous
  int64_t rounds_ = 0;          // synchronous: updates since the start
  int added_ = 0;               // synchronous: workers in the sum
  int64_t requests_ = 0;
  bool is_over_ = false;  // all updates have been made
  std::string failure_;
  ServerReport report_;
};

Server::Server(const Session& session,
               torch::nn::Module& module,
               const OptimizerFactory& make_optimizer,
               const ParameterServerOptions& options)
    : options_(options),
      is_synchronous_(options.mode() == UpdateMode::synchronous),
      session_(session),
      shard_(session_.shards()[ddp::rank()]),
      parameters_(shard_),
      workers_(session_.workers()),
      gate_(options.staleness_bound()) {
  detail::copy_all(shard_, parameters_.tensors());
  for (const auto& parameter : parameters_.tensors()) {
    parameter.requires_grad_(true);
  }
  optimizer_ = make_optimizer(parameters_.tensors());
  TORCH_CHECK(optimizer_ != nullptr,
              "Expected an optimizer from make_optimizer, but got none");
  if (!options.checkpoint().empty()) {
    saved_.emplace(module, *optimizer_, options);
  }
  if (options.resume()) {
    resume();
  }
  const int messages =
      is_synchronous_ ? std::min(session_.workers(), 2) : session_.workers();
  for (int i = 0; i < messages; ++i) {
    gradients_.emplace_back(shard_);
  }
}

void Server::resume() {
  int64_t own = saved_->load();
  std::vector<int64_t> all;
  for (const auto& updates :
       ddp::all_gather(at::full({1}, own, at::kLong), session_.all())) {
    all.push_back(updates.item<int64_t>());
  }
  all.resize(session_.servers());  // without the workers
  const int64_t least = *std::min_element(all.begin(), all.end());
  if (is_synchronous_ && least >= 0 && own > least) {
    own = saved_->load(least);
  }
  const bool fits = is_synchronous_ ? own == least : (own < 0) == (least < 0);
  TORCH_CHECK(fits,
              "Expected an update after which all servers have saved their "
              "parameters, but got checkpoints after ",
              c10::IntArrayRef(all),
              " updates, by server (-1: none); give each server the folder "
              "that it wrote");
  if (own >= 0) {
    detail::copy_all(shard_, parameters_.tensors());
    report_.updates = own;
    parameters_.version() = static_cast<double>(own);
  }
}

std::string Server::run() {
  start_threads();
  make_updates();
  std::string failure;
  {
    const Lock lock(mutex_);
    failure = failure_;
  }
  if (!failure.empty()) {
    failure = announce(session_, failure);
    session_.abort();
  }
  for (auto& thread : threads_) {
    thread.join();
  }
  detail::copy_all(parameters_.tensors(), shard_);
  return failure;
}

void Server::start_threads() {
  try {
    for (int worker = 0; worker < session_.workers(); ++worker) {
      threads_.emplace_back([this, worker] { serve_worker(worker); });
    }
  } catch (const std::system_error& error) {
    const Lock lock(mutex_);
    fail(detail::thread_error(
        c10::str("worker ", threads_.size(), " of ", session_.workers()),
        error));
  }
}

/// While a worker computes, or waits elsewhere, `serve` cannot return: for the
/// other ranks this thread waits for the worker's next request.
void Server::make_updates() {
  static const std::string what = "requests of the workers";
  std::optional<ddp::detail::GroupWaitScope> waits;
  int64_t awaited = 0;
  Lock lock(mutex_);
  while (failure_.empty() && !is_over_) {
    try {
      if (const auto update = next_update()) {
        waits.reset();
        make(*update);
      } else if (!is_any(Status::here)) {
        is_over_ = true;
      } else {
        check_departures();
        const int worker = first_awaited();
        if (!waits || awaited != workers_[worker].awaited) {
          awaited = workers_[worker].awaited;
          waits.emplace(session_.group_with(worker), what);
        }
        changed_.wait_for(lock, kPollInterval);
      }
    } catch (const std::exception& error) {
      fail("an update failed: " + ddp::detail::text_of(error));
    }
  }
  changed_.notify_all();
}

std::optional<Update> Server::next_update() {
  if (!is_synchronous_) {
    const auto next = gate_.next_update();
    return next ? std::optional(Update{report_.updates,
                                       next->worker,
                                       next->staleness,
                                       gradients_of(next->worker).loss()})
                : std::nullopt;
  }
  if (added_ < session_.workers()) {
    return std::nullopt;
  }
  added_ = 0;
  ++rounds_;
  return Update{
      report_.updates, 0, 0, gradients_of(0).loss() / session_.workers()};
}

void Server::make(const Update& update) {
  const c10::NoGradGuard no_grad;
  const auto& gradients = gradients_of(update.worker);
  for (size_t i = 0; i < shard_.size(); ++i) {
    parameters_.tensors()[i].mutable_grad() =
        gradients.is_present(i) != 0 ? gradients.tensors()[i] : at::Tensor();
  }
  if (options_.before_update()) {
    options_.before_update()(update, *optimizer_);
  }
  optimizer_->step();
  // The memory of these gradients will be reused for other gradients.
  for (const auto& parameter : parameters_.tensors()) {
    parameter.mutable_grad() = at::Tensor();
  }
  parameters_.version() = static_cast<double>(++report_.updates);
  const auto staleness = static_cast<size_t>(update.staleness);
  report_.staleness.resize(std::max(report_.staleness.size(), staleness + 1));
  ++report_.staleness[staleness];
  if (options_.checkpoint_every() > 0 &&
      report_.updates % options_.checkpoint_every() == 0) {
    detail::copy_all(parameters_.tensors(), shard_);
    saved_->save(report_.updates);
  }
  if (auto* progress = ddp::detail::progress_file()) {
    progress->note_forward();
  }
  changed_.notify_all();
}

void Server::serve_worker(int worker) {
  ddp::detail::block_signals();
  try {
    while (serve_request(worker)) {
    }
  } catch (const std::exception& error) {
    on_loss(worker, ddp::detail::text_of(error));
    session_.abort(worker);
  }
  session_.close(worker);
}

/// Returns false after the last request.
bool Server::serve_request(int worker) {
  const auto request = receive_request(worker);
  switch (request) {
    case Request::pull:
      send_parameters(worker);
      return true;
    case Request::push:
      receive_gradients(worker);
      return true;
    case Request::drop: {
      const Lock lock(mutex_);
      gate_.drop(worker);
      changed_.notify_all();
      return true;
    }
    case Request::finish:
      send_final_parameters(worker);
      return false;
    default:
      TORCH_CHECK(false,
                  "Expected a request, but got number ",
                  static_cast<int64_t>(request),
                  "; run the same build on all ranks");
  }
}

void Server::send_parameters(int worker) {
  at::Tensor message = parameters_.flat();
  {
    Lock lock(mutex_);
    if (is_synchronous_) {
      // The next update needs a push of this worker, so the parameters stay as
      // they are while they are sent.
      wait(lock, [&] { return workers_[worker].pushes == rounds_; });
    } else {
      gate_.ask(worker);
      wait(lock, [&] { return gate_.may_take(worker); });
      gate_.take(worker);
      message = gradients_of(worker).flat();
      message.copy_(parameters_.flat());
      changed_.notify_all();  // the next worker in the queue may proceed
    }
    report_.moved.sent += parameters_.bytes();
  }
  exchange(worker, message, Session::kServer);
}

void Server::receive_gradients(int worker) {
  const auto& gradients = gradients_of(worker);
  if (is_synchronous_) {
    Lock lock(mutex_);
    ++workers_[worker].pushes;
    check_pushes();
    // In the order of the workers, so that a training repeats exactly.
    wait(lock, [&] { return added_ == worker; });
  }
  exchange(worker, gradients.flat(), Session::kWorker);
  if (is_synchronous_) {
    detail::scale_gradients(gradients, 1.0 / session_.workers());
    if (worker > 0) {
      detail::add_gradients(gradients, gradients_of(0));
    }
  }
  const Lock lock(mutex_);
  report_.moved.received += gradients.bytes();
  is_synchronous_ ? static_cast<void>(++added_) : gate_.push(worker);
  changed_.notify_all();
}

void Server::send_final_parameters(int worker) {
  {
    Lock lock(mutex_);
    workers_[worker].status = Status::finished;
    gate_.drop(worker);
    check_pushes();
    changed_.notify_all();
    wait(lock, [this] { return is_over_; });
    report_.moved.sent += parameters_.bytes();
  }
  exchange(worker, parameters_.flat(), Session::kServer);
  receive_request(worker);  // the worker has them: the group may be closed
}

void Server::on_loss(int worker, const std::string& why) {
  const Lock lock(mutex_);
  if (!failure_.empty()) {
    return;
  }
  report_.lost.push_back(worker);
  if (workers_[worker].status == Status::finished) {
    return;  // it has done its part
  }
  workers_[worker].status = Status::lost;
  gate_.drop(worker);
  const auto text = name_of(worker) + " is gone: " + why;
  if (is_synchronous_) {
    fail(text);
  } else if (!is_any(Status::here) && !is_any(Status::finished)) {
    fail("no worker is left; the last: " + text);
  }
  changed_.notify_all();
}

void Server::exchange(int worker, const at::Tensor& message, int from) const {
  session_.wait(worker, session_.start(worker, message, from));
}

Request Server::receive_request(int worker) {
  const auto number = at::zeros({1}, at::kLong);
  const auto work = session_.start(worker, number, Session::kWorker);
  const auto set_awaited = [&](int64_t request) {
    const Lock lock(mutex_);
    workers_[worker].awaited = request == 0 ? 0 : ++requests_;
  };
  set_awaited(1);
  session_.wait(worker, work);
  set_awaited(0);
  return static_cast<Request>(number.item<int64_t>());
}

template <class Ready>
void Server::wait(Lock& lock, const Ready& ready) {
  changed_.wait(lock, [&] { return !failure_.empty() || ready(); });
  TORCH_CHECK(failure_.empty(), failure_);
}

void Server::fail(const std::string& why) {
  if (failure_.empty()) {
    failure_ = why;
    changed_.notify_all();
  }
}

/// Synchronous: a worker that has finished with fewer pushes than another one
/// ends the job.
void Server::check_pushes() {
  const auto most = std::max_element(
      workers_.begin(), workers_.end(), [](const auto& a, const auto& b) {
        return a.pushes < b.pushes;
      });
  for (auto it = workers_.begin(); it != workers_.end(); ++it) {
    if (it->status == Status::finished && it->pushes < most->pushes) {
      fail(c10::str("Expected all workers to push equally often, but ",
                    name_of(static_cast<int>(it - workers_.begin())),
                    " finished after ",
                    it->pushes,
                    " pushes and ",
                    name_of(static_cast<int>(most - workers_.begin())),
                    " made ",
                    most->pushes,
                    "; give all workers equally many batches"));
    }
  }
}

/// Ends the job without another server and, if synchronous, without a worker.
void Server::check_departures() {
  std::vector<int> ranks;
  for (int server = 0; server < session_.servers(); ++server) {
    if (server != ddp::rank()) {
      ranks.push_back(server);
    }
  }
  for (int worker = 0; is_synchronous_ && worker < session_.workers();
       ++worker) {
    if (workers_[worker].status == Status::here) {
      ranks.push_back(session_.servers() + worker);
    }
  }
  const auto departure = session_.departure_of(ranks);
  if (!departure.empty()) {
    fail(departure);
  }
}

/// Returns a worker that is here, if possible one with an awaited request.
int Server::first_awaited() const {
  int first = -1;
  for (int worker = 0; worker < session_.workers(); ++worker) {
    const auto& one = workers_[worker];
    if (one.status == Status::here &&
        (first < 0 || (one.awaited != 0 && workers_[first].awaited == 0))) {
      first = worker;
    }
  }
  return first;
}

bool Server::is_any(Status status) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const auto& one) {
    return one.status == status;
  });
}

}  // namespace

bool is_server(const ParameterServerOptions& options) {
  detail::check(options);
  return ddp::rank() < options.servers();
}

ServerReport serve(torch::nn::Module& module,
                   const OptimizerFactory& make_optimizer,
                   const ParameterServerOptions& options) {
  TORCH_CHECK(is_server(options),
              "Expected serve() on the first ",
              options.servers(),
              " ranks, but got it on rank ",
              ddp::rank(),
              ", which needs a ParameterClient");
  const Session session(module, options);
  std::string failure;
  try {
    Server server(session, module, make_optimizer, options);
    failure = server.run();
    if (failure.empty()) {
      return server.report();
    }
  } catch (const std::exception& error) {
    failure = announce(session, ddp::detail::text_of(error));
  }
  TORCH_CHECK(false, failure);
}

}  // namespace dp
