#include <algorithm>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <utility>

#include "dp/detail/parameter_server/link.h"
#include "dp/detail/parameter_server/session.h"
#include "dp/detail/parameter_server/shard.h"
#include "dp/parameter_server.h"

namespace dp {

using detail::Message;
using detail::Op;

namespace {

/// For telling servers that the job has ended: they may be gone, too.
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
  MovedBytes moved() const { return moved_; }

 private:
  /// Runs what talks to servers. An error ends the client.
  template <class Talk>
  void talk(const Talk& run);
  void give_up(const std::string& reason);
  /// Runs `talk_to(server)` for all servers at once; throws what failed first.
  void at_once(const std::function<void(size_t)>& talk_to);
  /// Asks a server for parameters and waits for them.
  /// @param on_wait  called when the answer takes longer.
  void request(Op op, size_t server, const std::function<void()>& on_wait);
  /// Tells the servers but one that this worker waits for that one.
  void show_life(size_t busy);
  void copy_to_module();
  detail::Link& link(size_t server) { return *session_.links[server]; }

  std::shared_ptr<torch::nn::Module> module_;
  bool is_synchronous_;
  detail::Session session_;
  std::vector<detail::FlatTensors> parameters_;   // by server
  std::vector<detail::FlatGradients> gradients_;  // by server
  std::vector<int64_t> versions_;                 // by server
  bool has_pulled_ = false;
  std::string ended_;  // why, when it has
  MovedBytes moved_;
};

ParameterClient::Impl::Impl(std::shared_ptr<torch::nn::Module> module,
                            const ParameterServerOptions& options)
    : module_(std::move(module)),
      is_synchronous_(options.mode() == UpdateMode::synchronous) {
  TORCH_CHECK(module_ != nullptr,
              "Expected a module to train, but got an empty holder");
  session_ = detail::join_session(*module_, options, detail::Role::worker);
  for (const auto& shard : session_.shards) {
    parameters_.emplace_back(shard);
    gradients_.emplace_back(shard);
    versions_.push_back(0);
  }
}

void ParameterClient::Impl::pull() {
  talk([this] {
    if (is_synchronous_) {
      at_once([this](size_t server) { request(Op::pull, server, [] {}); });
    } else {
      // One order for all workers, or servers could wait for each other.
      for (size_t server = 0; server < session_.links.size(); ++server) {
        request(Op::pull, server, [&] { show_life(server); });
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
  for (size_t server = 0; server < gradients_.size(); ++server) {
    gradients_[server].take(session_.shards[server]);
  }
  talk([&] {
    // All before waiting for any: no server may hold up another.
    for (size_t server = 0; server < session_.links.size(); ++server) {
      link(server).post({.op = Op::push, .loss = loss},
                        gradients_[server].flat());
      moved_.sent += parameters_[server].bytes();
    }
    for (const auto& link : session_.links) {
      link->flush();
    }
  });
  has_pulled_ = false;
}

void ParameterClient::Impl::finish() {
  talk([this] {
    // First all: what this worker holds at one server may stop another worker
    // that the others wait for.
    for (const auto& link : session_.links) {
      link->send({.op = Op::leave});
    }
    at_once([this](size_t server) { request(Op::last, server, [] {}); });
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
    run();
  } catch (const c10::Error& error) {
    give_up(error.what_without_backtrace());
    throw;
  } catch (const std::exception& error) {
    give_up(error.what());
    throw;
  }
}

void ParameterClient::Impl::give_up(const std::string& reason) {
  ended_ = reason.empty() ? "an error without a text" : reason;
  const auto name =
      detail::worker_name(topology().worker(), topology().servers);
  for (const auto& link : session_.links) {
    if (!link) {
      continue;
    }
    try {
      link->post({.op = Op::failure, .text = name + ": " + reason});
      link->flush(kTimeToSend);
    } catch (const c10::Error&) {
      // It is gone itself.
    }
  }
  session_.links.clear();
}

void ParameterClient::Impl::at_once(
    const std::function<void(size_t)>& talk_to) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](size_t server) {
    try {
      talk_to(server);
    } catch (...) {
      const std::lock_guard lock(mutex);
      first = first ? first : std::current_exception();
    }
  };
  {
    std::vector<std::future<void>> others;  // wait when they go
    for (size_t server = 1; server < session_.links.size(); ++server) {
      others.push_back(std::async(std::launch::async, run, server));
    }
    run(0);
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

void ParameterClient::Impl::request(Op op,
                                    size_t server,
                                    const std::function<void()>& on_wait) {
  auto& link = *session_.links[server];
  link.send({.op = op});
  Message message = link.receive();
  for (; message.op == Op::wait; message = link.receive()) {
    on_wait();
  }
  TORCH_CHECK(message.op != Op::failure,
              detail::server_name(static_cast<int>(server)),
              " ended: ",
              message.text);
  if (message.op != Op::parameters) {
    link.refuse("what a worker sends");
  }
  link.receive_payload(parameters_[server].flat());
  versions_[server] = message.version;
}

void ParameterClient::Impl::show_life(size_t busy) {
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
