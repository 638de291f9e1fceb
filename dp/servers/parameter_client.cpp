#include <algorithm>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>

#include "ddp/base/job_files/progress_file.h"
#include "ddp/job/error_text.h"
#include "dp/servers/detail/conversation.h"
#include "dp/servers/detail/flat_tensors.h"
#include "dp/servers/detail/gradients.h"
#include "dp/servers/detail/link.h"
#include "dp/servers/detail/run_in_threads.h"
#include "dp/servers/detail/session.h"
#include "dp/servers/detail/shard.h"
#include "dp/servers/parameter_server.h"

namespace dp {

using detail::Op;

namespace {

/// Time limit for reporting the end of the job to the servers, which may have
/// exited too.
constexpr std::chrono::milliseconds kTimeToSend{1'000};

}  // namespace

class ParameterClient::Impl {
 public:
  Impl(std::shared_ptr<torch::nn::Module> module,
       const ParameterServerOptions& options);

  void pull();
  void push(double loss);
  void finish();

  const detail::Topology& topology() const { return session_.topology; }
  int64_t version() const {
    return *std::min_element(versions_.begin(), versions_.end());
  }
  const MovedBytes& moved() const { return moved_; }

 private:
  /// Runs communication with the servers. An exception ends the client.
  template <class Talk>
  void talk(const Talk& run);
  void leave_with_error(const std::string& reason);
  using OnWait = detail::OnWait;
  /// Runs `talk_to(server, on_wait)` for all servers concurrently. Rethrows the
  /// first exception.
  void run_in_threads(
      const std::function<void(size_t, const OnWait&)>& talk_to);
  /// Requests parameters from a server and receives them.
  void request(Op op, size_t server, const OnWait& on_wait);
  /// Sends a sign of life to all servers except `busy`, on which this worker
  /// waits.
  void send_signs_of_life(size_t busy);
  void copy_to_module();
  detail::Link& link(size_t server) { return *session_.links[server]; }

  std::shared_ptr<torch::nn::Module> module_;
  bool is_synchronous_;
  detail::Session session_;
  std::vector<detail::FlatTensors> parameters_;  // as received, by server
  std::vector<detail::FlatTensors> gradients_;   // as sent, by server
  std::vector<int64_t> versions_;                // by server
  bool has_pulled_ = false;
  std::string ended_;  // reason of the end; empty while the client works
  MovedBytes moved_;
};

ParameterClient::Impl::Impl(std::shared_ptr<torch::nn::Module> module,
                            const ParameterServerOptions& options)
    : module_(std::move(module)),
      is_synchronous_(options.mode() == UpdateMode::synchronous) {
  TORCH_CHECK(module_ != nullptr,
              "Expected a module to train, but got an empty holder");
  session_ = detail::join_session(*module_, options, detail::Role::worker);
  if (!session_.problem.empty()) {
    leave_with_error(session_.problem);
    TORCH_CHECK(false, ended_);
  }
  for (const auto& shard : session_.shards) {
    parameters_.emplace_back(shard);
    gradients_.emplace_back(shard);
  }
  versions_.resize(session_.shards.size());
}

void ParameterClient::Impl::pull() {
  talk([&] {
    if (is_synchronous_) {
      run_in_threads([&](size_t server, const OnWait& on_wait) {
        request(Op::pull, server, on_wait);
      });
    } else {
      // Drop first: parameters that this worker still holds at a later server
      // could block workers for which it waits at an earlier server.
      if (has_pulled_) {
        for (const auto& link : session_.links) {
          link->send({.op = Op::drop});
        }
      }
      // All workers ask the servers in the same order; otherwise they could
      // deadlock.
      for (size_t server = 0; server < session_.links.size(); ++server) {
        request(Op::pull, server, [&] { send_signs_of_life(server); });
      }
    }
  });
  copy_to_module();
  has_pulled_ = true;
}

void ParameterClient::Impl::push(double loss) {
  TORCH_CHECK(has_pulled_ || !ended_.empty(),
              "Expected pull() before each push(), but got none since the last "
              "one");
  std::vector<detail::Presence> presences;
  for (size_t server = 0; server < session_.shards.size(); ++server) {
    presences.push_back(
        detail::copy_gradients(session_.shards[server], gradients_[server]));
  }
  talk([&] {
    run_in_threads([&](size_t server, const OnWait& on_wait) {
      detail::send_gradients(
          link(server),
          server,
          {.op = Op::push, .loss = loss, .numbers = presences[server]},
          gradients_[server].flat(),
          on_wait);
    });
  });
  for (const auto& gradients : gradients_) {
    moved_.sent += gradients.bytes();
  }
  has_pulled_ = false;
}

void ParameterClient::Impl::finish() {
  talk([&] {
    // Leave all servers first: parameters that this worker holds at one server
    // may block a worker for which the other servers wait.
    for (const auto& link : session_.links) {
      link->send({.op = Op::leave});
    }
    run_in_threads([&](size_t server, const OnWait&) {
      // A server that has answered this request receives no further messages.
      request(Op::last, server, [] {});
    });
  });
  copy_to_module();
  session_.links.clear();
  ended_ = "this client has finished";
}

template <class Talk>
void ParameterClient::Impl::talk(const Talk& run) {
  TORCH_CHECK(ended_.empty(),
              "Expected a client at work, but got one whose job has "
              "ended: ",
              ended_);
  try {
    const ddp::detail::RankWaitScope waits("parameter servers");
    run();
  } catch (const std::exception& error) {
    leave_with_error(ddp::detail::text_of(error));
    throw;
  }
  if (auto* progress = ddp::detail::progress_file()) {
    progress->note_forward();
  }
}

void ParameterClient::Impl::leave_with_error(const std::string& reason) {
  ended_ = reason.empty() ? "an error without a text" : reason;
  const auto name =
      detail::worker_name(topology().worker(), topology().servers);
  for (const auto& link : session_.links) {
    if (link->has_ended()) {
      continue;
    }
    try {
      link->post({.op = Op::failure, .text = name + ": " + ended_});
      link->flush(kTimeToSend);
    } catch (const c10::Error&) {
      // The server has exited itself.
    }
  }
  session_.links.clear();
}

void ParameterClient::Impl::run_in_threads(
    const std::function<void(size_t, const OnWait&)>& talk_to) {
  std::mutex mutex;  // guards `done` and the links of the servers in it
  std::vector<size_t> done;
  const OnWait on_wait = [&] {
    const std::lock_guard lock(mutex);
    for (const size_t server : done) {
      link(server).send({.op = Op::wait});
    }
  };
  detail::run_in_threads(session_.links.size(), [&](size_t server) {
    talk_to(server, on_wait);
    const std::lock_guard lock(mutex);
    done.push_back(server);
  });
}

void ParameterClient::Impl::request(Op op,
                                    size_t server,
                                    const OnWait& on_wait) {
  versions_[server] = detail::request_parameters(
      link(server), server, op, parameters_[server].flat(), on_wait);
}

void ParameterClient::Impl::send_signs_of_life(size_t busy) {
  for (size_t server = 0; server < session_.links.size(); ++server) {
    if (server != busy) {
      link(server).send({.op = Op::wait});
    }
  }
}

void ParameterClient::Impl::copy_to_module() {
  for (size_t server = 0; server < parameters_.size(); ++server) {
    detail::copy_all(parameters_[server].pieces(), session_.shards[server]);
    moved_.received += parameters_[server].bytes();
  }
}

ParameterClient::ParameterClient(std::shared_ptr<torch::nn::Module> module,
                                 const ParameterServerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(module), options)) {}

ParameterClient::~ParameterClient() = default;

void ParameterClient::pull() {
  impl_->pull();
}

void ParameterClient::push(double loss) {
  impl_->push(loss);
}

void ParameterClient::finish() {
  impl_->finish();
}

int ParameterClient::worker() const {
  return impl_->topology().worker();
}

int ParameterClient::workers() const {
  return impl_->topology().workers();
}

int64_t ParameterClient::version() const {
  return impl_->version();
}

MovedBytes ParameterClient::moved() const {
  return impl_->moved();
}

}  // namespace dp
