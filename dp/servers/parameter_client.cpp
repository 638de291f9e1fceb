#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "ddp/base/job_files/progress_file.h"
#include "ddp/job/collectives.h"
#include "ddp/job/error_text.h"
#include "ddp/job/process_group.h"
#include "dp/servers/detail/session.h"
#include "dp/servers/detail/shard.h"
#include "dp/servers/parameter_server.h"

namespace dp {

using detail::Request;
using detail::Session;

struct ParameterClient::Impl {
  Impl(std::shared_ptr<torch::nn::Module> trained,
       const ParameterServerOptions& options);

  int servers() const { return session.servers(); }
  /// Runs communication with the servers. An exception ends the client.
  template <class Talk>
  void talk(const Talk& run);
  /// Start a message with a server. The messages with one server follow each
  /// other.
  void start(int server, const at::Tensor& message, int from);
  void request(int server, Request kind);
  /// Waits for all messages that have been started.
  void wait();
  void copy_to_module();

  std::shared_ptr<torch::nn::Module> module;
  bool is_synchronous;
  Session session;
  std::vector<detail::ShardMessage> messages;  // by server
  std::vector<std::pair<int, Session::Work>> started;
  int64_t version = 0;
  bool has_pulled = false;
  std::string ended;  // reason of the end; empty while the client works
  MovedBytes moved;
};

namespace {

torch::nn::Module& checked(const std::shared_ptr<torch::nn::Module>& module,
                           const ParameterServerOptions& options) {
  TORCH_CHECK(module != nullptr,
              "Expected a module to train, but got an empty holder");
  TORCH_CHECK(!is_server(options),
              "Expected a ParameterClient on the ranks from ",
              options.servers(),
              " on, but got it on rank ",
              ddp::rank(),
              ", which needs serve()");
  return *module;
}

}  // namespace

ParameterClient::Impl::Impl(std::shared_ptr<torch::nn::Module> trained,
                            const ParameterServerOptions& options)
    : module(std::move(trained)),
      is_synchronous(options.mode() == UpdateMode::synchronous),
      session(checked(module, options), options) {
  if (options.resume()) {
    // The servers compare their checkpoints.
    ddp::all_gather(at::zeros({1}, at::kLong), session.all());
  }
  for (const auto& shard : session.shards()) {
    messages.emplace_back(shard);
  }
}

template <class Talk>
void ParameterClient::Impl::talk(const Talk& run) {
  TORCH_CHECK(ended.empty(),
              "Expected a client at work, but got one whose job has "
              "ended: ",
              ended);
  try {
    run();
  } catch (const std::exception& error) {
    // A server that ends because another one has gone is not the cause.
    std::vector<int> ranks(servers());
    std::iota(ranks.begin(), ranks.end(), 0);
    ended = session.departure_of(ranks);
    if (ended.empty()) {
      ended = ddp::detail::text_of(error);
    }
    session.abort();
    TORCH_CHECK(false, ended);
  }
  if (auto* progress = ddp::detail::progress_file()) {
    progress->note_forward();
  }
}

void ParameterClient::Impl::start(int server,
                                  const at::Tensor& message,
                                  int from) {
  started.emplace_back(server, session.start(server, message, from));
}

void ParameterClient::Impl::request(int server, Request kind) {
  start(server,
        at::full({1}, static_cast<int64_t>(kind), at::kLong),
        Session::kWorker);
}

void ParameterClient::Impl::wait() {
  for (const auto& [server, work] : std::exchange(started, {})) {
    session.wait(server, work);
  }
}

void ParameterClient::Impl::copy_to_module() {
  version = std::numeric_limits<int64_t>::max();
  for (int server = 0; server < servers(); ++server) {
    const auto& parameters = messages[server];
    detail::copy_all(parameters.tensors(), session.shards()[server]);
    version = std::min(version, static_cast<int64_t>(parameters.version()));
    moved.received += parameters.bytes();
  }
}

ParameterClient::ParameterClient(std::shared_ptr<torch::nn::Module> module,
                                 const ParameterServerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(module), options)) {}

ParameterClient::~ParameterClient() = default;

void ParameterClient::pull() {
  impl_->talk([&] {
    // Drop first: parameters that this worker still holds at a later server
    // could block workers for which it waits at an earlier server.
    for (int server = 0; impl_->has_pulled && server < impl_->servers();
         ++server) {
      impl_->request(server, Request::drop);
    }
    for (int server = 0; server < impl_->servers(); ++server) {
      impl_->request(server, Request::pull);
      impl_->start(server, impl_->messages[server].flat(), Session::kServer);
      if (!impl_->is_synchronous) {
        // All workers ask the servers one after another in the same order;
        // otherwise they could deadlock.
        impl_->wait();
      }
    }
    impl_->wait();
  });
  impl_->copy_to_module();
  impl_->has_pulled = true;
}

void ParameterClient::push(double loss) {
  TORCH_CHECK(impl_->has_pulled || !impl_->ended.empty(),
              "Expected pull() before each push(), but got none since the last "
              "one");
  impl_->talk([&] {
    for (int server = 0; server < impl_->servers(); ++server) {
      const auto& gradients = impl_->messages[server];
      detail::copy_gradients(impl_->session.shards()[server], gradients);
      gradients.loss() = loss;
      impl_->request(server, Request::push);
      impl_->start(server, gradients.flat(), Session::kWorker);
      impl_->moved.sent += gradients.bytes();
    }
    impl_->wait();
  });
  impl_->has_pulled = false;
}

void ParameterClient::finish() {
  impl_->talk([&] {
    for (int server = 0; server < impl_->servers(); ++server) {
      impl_->request(server, Request::finish);
      impl_->start(server, impl_->messages[server].flat(), Session::kServer);
      impl_->request(server, Request::received);
    }
    impl_->wait();
  });
  impl_->copy_to_module();
  for (int server = 0; server < impl_->servers(); ++server) {
    impl_->session.close(server);
  }
  impl_->ended = "this client has finished";
}

int ParameterClient::worker() const {
  return ddp::rank() - impl_->servers();
}

int ParameterClient::workers() const {
  return impl_->session.workers();
}

int64_t ParameterClient::version() const {
  return impl_->version;
}

MovedBytes ParameterClient::moved() const {
  return impl_->moved;
}

}  // namespace dp
