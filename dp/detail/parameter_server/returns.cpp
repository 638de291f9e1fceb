#include "dp/detail/parameter_server/returns.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "ddp/detail/named_tensors.h"
#include "dp/detail/parameter_server/flat_tensors.h"
#include "dp/detail/parameter_server/shard.h"

namespace dp::detail {
namespace {

/// Of a description.
constexpr int64_t kMaxBytes = 1 << 28;

std::string key_of(int worker, int64_t time) {
  return "back/" + std::to_string(worker) + "/" + std::to_string(time);
}

std::vector<ddp::detail::TensorSpec> specs_of(const torch::nn::Module& module) {
  return ddp::detail::describe_all(
      ddp::detail::unique(module.named_parameters()),
      ddp::detail::unique(module.named_buffers()));
}

/// What servers do not hold: frozen parameters and buffers.
std::vector<at::Tensor> rest_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> rest;
  for (const auto& item : ddp::detail::unique(module.named_parameters())) {
    if (!item.tensor.requires_grad()) {
      rest.push_back(item.tensor);
    }
  }
  for (const auto& item : ddp::detail::unique(module.named_buffers())) {
    rest.push_back(item.tensor);
  }
  return rest;
}

at::Tensor to_bytes(const std::string& text) {
  auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

}  // namespace

Returns::Returns(const Session& session,
                 const torch::nn::Module& module,
                 std::chrono::milliseconds timeout,
                 std::chrono::milliseconds patience)
    : module_(module),
      timeout_(timeout),
      patience_(patience),
      times_(static_cast<size_t>(session.topology.workers())) {
  way_.topology = session.topology;
  way_.route = session.route;
}

std::unique_ptr<Link> Returns::wait_for(int worker,
                                        const std::function<bool()>& rest) {
  const auto end = std::chrono::steady_clock::now() + patience_;
  auto& time = times_[static_cast<size_t>(worker)];
  try {
    while (std::chrono::steady_clock::now() < end) {
      if (!way_.route.store->check({key_of(worker, time + 1)})) {
        if (rest()) {
          return nullptr;
        }
      } else if (auto link = welcome(worker, ++time)) {
        return link;
      }
    }
  } catch (const std::exception&) {
    // Without a store nobody finds back.
  }
  return nullptr;
}

void Returns::close() const {
  if (way_.topology.rank == 0 && patience_.count() > 0) {
    try {
      way_.route.store->set(kSessionOver, "");
    } catch (const std::exception&) {
      // Without a store nobody finds back.
    }
  }
}

std::unique_ptr<Link> Returns::welcome(int worker, int64_t time) const {
  try {
    auto link = connect_pair(way_, key_of(worker, time), worker, timeout_);
    const auto message = link->receive();
    if (message.op != Op::back || message.numbers.size() != 1 ||
        message.numbers[0] < 0 || message.numbers[0] > kMaxBytes) {
      link->refuse("another message than that it is back");
    }
    const auto bytes = at::empty({message.numbers[0]}, at::kByte);
    link->receive_payload(bytes);
    const auto problem = ddp::detail::first_mismatch(
        {specs_of(module_), ddp::detail::read_specs(decode_text(bytes))});
    if (!problem.empty()) {
      link->send({.op = Op::failure, .text = problem});
      return nullptr;
    }
    const FlatTensors rest(rest_of(module_));
    copy_all(rest_of(module_), rest.pieces());
    link->send({.op = Op::parameters},
               way_.topology.rank == 0 ? rest.flat() : at::Tensor());
    return link;
  } catch (const c10::Error&) {
    return nullptr;  // gone again
  }
}

Session rejoin_session(torch::nn::Module& module,
                       const ParameterServerOptions& options) {
  auto session = find_session(module, options);
  const int worker = session.topology.worker();
  const auto time =
      session.route.store->add("back/" + std::to_string(worker), 1);
  session.route.store->set(key_of(worker, time), "");
  const auto specs = to_bytes(ddp::detail::write_specs(specs_of(module)));
  for (int server = 0; server < session.topology.servers; ++server) {
    auto link =
        connect_pair(session, key_of(worker, time), server, options.timeout());
    link->send({.op = Op::back, .numbers = {specs.numel()}}, specs);
    const auto answer = link->receive();
    TORCH_CHECK(answer.op == Op::parameters,
                server_name(server),
                " does not take this worker back: ",
                answer.text);
    if (server == 0) {
      const FlatTensors rest(rest_of(module));
      link->receive_payload(rest.flat());
      copy_all(rest.pieces(), rest_of(module));
    }
    session.links.push_back(std::move(link));
  }
  return session;
}

}  // namespace dp::detail
