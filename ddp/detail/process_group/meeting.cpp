#include "ddp/detail/process_group/meeting.h"

#include <algorithm>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ddp/detail/process_group/tcp.h"
#include "ddp/detail/rank_text.h"

namespace ddp::detail {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// How long a name may take to appear.
constexpr milliseconds kResolvePatience{10'000};

std::string address(const WorkerEnv& env) {
  return env.master_addr + ":" + std::to_string(env.master_port);
}

void check_resolves(const WorkerEnv& env, milliseconds timeout) {
  const Problem problem =
      wait_until_resolved(env.master_addr, std::min(timeout, kResolvePatience));
  TORCH_CHECK(problem.empty(),
              "Expected MASTER_ADDR to name the host of rank 0, but \"",
              env.master_addr,
              "\" does not resolve (",
              problem,
              "). Set it to a name or address that every host knows; on one "
              "host 127.0.0.1");
}

/// Our own socket instead of the store's: it is closed to other hosts when
/// MASTER_ADDR is, and a port in use is one line instead of a page.
int listen_for_store(const WorkerEnv& env) {
  const Listener listener =
      listen_at(env.host_count > 1 ? local_address_towards(env.master_addr)
                                   : env.master_addr,
                env.master_port);
  TORCH_CHECK(!listener.port_in_use,
              "Expected rank 0 to listen on MASTER_PORT=",
              env.master_port,
              ", but the port is in use. Choose another one, or let ddprun "
              "choose a free one by leaving --master-port out");
  TORCH_CHECK(listener.problem.empty(),
              "Expected rank 0 to listen at ",
              address(env),
              ", but it cannot: ",
              listener.problem);
  return listener.fd;
}

void wait_for_store(const WorkerEnv& env, milliseconds timeout) {
  const Problem problem =
      wait_until_listening(env.master_addr, env.master_port, timeout);
  TORCH_CHECK(problem.empty(),
              "Expected rank ",
              env.rank,
              " to reach the store of rank 0 at ",
              address(env),
              " within ",
              timeout.count() / 1000.0,
              " s, but it did not (",
              problem,
              "). Is rank 0 running, is MASTER_ADDR its host, does a firewall "
              "close the port?");
}

std::string arrival_key(int rank) {
  return "arrived/" + std::to_string(rank);
}

std::vector<uint8_t> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

}  // namespace

std::string key_prefix(const WorkerEnv& env, const std::string& run_id) {
  std::string prefix = "ddp/" + run_id;
  // torchrun's agents count restarts each for itself, so on many hosts the
  // count may differ between ranks of one attempt.
  if (!env.use_agent_store || env.host_count == 1) {
    prefix += "/attempt_" + std::to_string(env.restart_count);
  }
  return prefix;
}

c10::intrusive_ptr<c10d::Store> open_store(const WorkerEnv& env,
                                           milliseconds timeout) {
  if (env.master_addr.empty()) {
    return c10::make_intrusive<c10d::HashStore>();
  }
  check_resolves(env, timeout);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(env.master_port);
  options.isServer = env.rank == 0 && !env.use_agent_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (options.isServer) {
    options.masterListenFd = listen_for_store(env);
  } else {
    wait_for_store(env, timeout);
  }
  return c10::make_intrusive<c10d::TCPStore>(env.master_addr, options);
}

std::vector<int> missing_ranks(c10d::Store& store,
                               int world_size,
                               std::string (*key_of)(int rank)) {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (!store.check({key_of(rank)})) {
      missing.push_back(rank);
    }
  }
  return missing;
}

std::vector<std::string> exchange_texts(
    c10d::Store& store,
    int rank,
    int world_size,
    const std::string& mine,
    milliseconds timeout,
    const std::function<bool(const std::string& text)>& is_last) {
  store.set(arrival_key(rank), bytes(mine));
  std::vector<std::string> texts;
  const auto deadline = steady_clock::now() + timeout;
  for (int peer = 0; peer < world_size; ++peer) {
    const auto left = std::chrono::duration_cast<milliseconds>(
        deadline - steady_clock::now());
    try {
      store.wait({arrival_key(peer)}, std::max(left, milliseconds(1)));
    } catch (const c10::Error& error) {
      const auto missing = missing_ranks(store, world_size, arrival_key);
      TORCH_CHECK(false,
                  "Expected ",
                  world_size,
                  " ranks to arrive within ",
                  timeout.count() / 1000.0,
                  " s, but ",
                  missing.size(),
                  " did not: ",
                  rank_list(missing),
                  ". Were they started, with the same WORLD_SIZE, MASTER_ADDR "
                  "and MASTER_PORT?");
    }
    const auto value = store.get(arrival_key(peer));
    texts.emplace_back(value.begin(), value.end());
    if (is_last(texts.back())) {
      break;
    }
  }
  return texts;
}

std::vector<Arrival> exchange_arrivals(c10d::Store& store,
                                       int rank,
                                       int world_size,
                                       const Arrival& mine,
                                       milliseconds timeout) {
  const auto parse = [](const std::string& text) {
    const auto split = text.find('\n');
    return Arrival{text.substr(0, split), text.substr(split + 1)};
  };
  std::vector<Arrival> arrivals;
  for (const auto& text : exchange_texts(store,
                                         rank,
                                         world_size,
                                         mine.backend + "\n" + mine.error,
                                         timeout,
                                         [&](const std::string& text) {
                                           return !parse(text).error.empty();
                                         })) {
    arrivals.push_back(parse(text));
  }
  return arrivals;
}

std::string arrivals_problem(const std::vector<Arrival>& arrivals) {
  for (size_t rank = 0; rank < arrivals.size(); ++rank) {
    if (!arrivals[rank].error.empty()) {
      return "rank " + std::to_string(rank) + ": " + arrivals[rank].error;
    }
  }
  for (size_t rank = 1; rank < arrivals.size(); ++rank) {
    if (arrivals[rank].backend != arrivals[0].backend) {
      return "Expected all ranks to use one backend, but rank 0 uses \"" +
             arrivals[0].backend + "\" and rank " + std::to_string(rank) +
             " uses \"" + arrivals[rank].backend +
             "\". Name the backend in ProcessGroupOptions, or give every rank "
             "a GPU";
    }
  }
  return "";
}

bool store_barrier(c10d::Store& store,
                   const std::string& name,
                   int world_size,
                   milliseconds timeout) noexcept {
  try {
    if (store.add(name + "/count", 1) == world_size) {
      store.set(name + "/all", bytes("1"));
    }
    store.wait({name + "/all"}, timeout);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace ddp::detail
