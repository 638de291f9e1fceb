#include "ddp/job/meeting.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ddp/base/net/tcp.h"
#include "ddp/base/text/rank_text.h"
#include "ddp/base/text/record.h"
#include "ddp/job/error_text.h"

namespace ddp::detail {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* kAllArrived = "arrived/all";

/// Time limit for resolving a host name.
constexpr milliseconds kResolvePatience{10'000};

/// Time limit of LibTorch's first attempt to connect to rank 0's store. The
/// limit doubles with each attempt, up to kLongestStoreTry.
constexpr milliseconds kFirstStoreTry{1'000};
constexpr milliseconds kLongestStoreTry{16'000};

milliseconds time_until(steady_clock::time_point deadline) {
  return std::chrono::duration_cast<milliseconds>(deadline -
                                                  steady_clock::now());
}

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

/// Listens with a socket of our own instead of the store's. Other hosts cannot
/// reach it if MASTER_ADDR is local, and a port in use gives one line instead
/// of many.
int listen_for_store(const WorkerEnv& env) {
  FileDescriptor listener = listen_for_ranks(
      env.host_count > 1 ? local_address_towards(env.master_addr)
                         : env.master_addr,
      env.master_port);
  const int error = listener ? 0 : errno;
  TORCH_CHECK(error != EADDRINUSE,
              "Expected rank 0 to listen on MASTER_PORT=",
              env.master_port,
              ", but the port is in use. Choose another one, or let ddprun "
              "choose a free one by leaving --master-port out");
  TORCH_CHECK(error == 0,
              "Expected rank 0 to listen at ",
              address(env),
              ", but it cannot: ",
              std::strerror(error));
  return listener.release();
}

void check_not_in_vain(const WorkerEnv& env, const VainCheck& why_in_vain) {
  const std::string reason = why_in_vain ? why_in_vain() : "";
  TORCH_CHECK(reason.empty(),
              "Expected rank ",
              env.rank,
              " to reach the store of rank 0 at ",
              address(env),
              ", but ",
              reason);
}

void wait_for_store(const WorkerEnv& env,
                    milliseconds timeout,
                    const VainCheck& why_in_vain) {
  const Problem problem =
      wait_until_listening(env.master_addr, env.master_port, timeout, [&] {
        check_not_in_vain(env, why_in_vain);
      });
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

/// Connects with a short time limit per attempt, because LibTorch's client
/// retries again and again to connect to a server that has ended.
c10::intrusive_ptr<c10d::Store> connect_with_store(
    const WorkerEnv& env,
    c10d::TCPStoreOptions options,
    milliseconds timeout,
    const VainCheck& why_in_vain) {
  const auto deadline = steady_clock::now() + timeout;
  for (auto patience = kFirstStoreTry;;
       patience = std::min(2 * patience, kLongestStoreTry)) {
    wait_for_store(
        env, std::max(time_until(deadline), milliseconds(1)), why_in_vain);
    options.timeout =
        std::max(std::min(time_until(deadline), patience), milliseconds(1));
    try {
      auto store =
          c10::make_intrusive<c10d::TCPStore>(env.master_addr, options);
      store->setTimeout(timeout);
      return store;
    } catch (const c10::Error&) {
      if (steady_clock::now() >= deadline) {
        throw;
      }
    }
  }
}

std::string arrival_key(int rank) {
  return "arrived/" + std::to_string(rank);
}

std::vector<uint8_t> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

/// Reads all values, in one request if the store supports it.
std::vector<std::vector<uint8_t>> get_all(
    c10d::Store& store, const std::vector<std::string>& keys) {
  if (store.hasExtendedApi()) {
    return store.multiGet(keys);
  }
  std::vector<std::vector<uint8_t>> values;
  values.reserve(keys.size());
  for (const auto& key : keys) {
    values.push_back(store.get(key));
  }
  return values;
}

}  // namespace

std::string key_prefix(const WorkerEnv& env, const std::string& run_id) {
  std::string prefix = "ddp/" + run_id;
  // Every torchrun agent counts restarts on its own, so on several hosts the
  // count may differ between ranks of one attempt.
  if (!env.use_agent_store || env.host_count == 1) {
    prefix += "/attempt_" + std::to_string(env.restart_count);
  }
  return prefix;
}

c10::intrusive_ptr<c10d::Store> open_store(const WorkerEnv& env,
                                           milliseconds timeout,
                                           const VainCheck& why_in_vain) {
  if (env.master_addr.empty()) {
    return c10::make_intrusive<c10d::HashStore>();
  }
  check_resolves(env, timeout);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(env.master_port);
  options.isServer = env.rank == 0 && !env.use_agent_store;
  options.waitWorkers = false;
  if (!options.isServer) {
    return connect_with_store(env, options, timeout, why_in_vain);
  }
  options.timeout = timeout;
  options.masterListenFd = listen_for_store(env);
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

std::vector<std::string> exchange_texts(c10d::Store& store,
                                        int rank,
                                        int world_size,
                                        const std::string& mine,
                                        milliseconds timeout,
                                        bool is_last) {
  store.set(arrival_key(rank), bytes(mine));
  if (is_last) {
    store.set(kAllArrived, std::to_string(rank));
  } else if (store.add("arrived/count", 1) == world_size) {
    store.set(kAllArrived, "");
  }
  try {
    store.wait({kAllArrived}, timeout);
  } catch (const WaitInVain&) {
    throw;
  } catch (const c10::DistNetworkError& error) {
    C10_THROW_ERROR(
        DistNetworkError,
        "Expected " + std::to_string(world_size) +
            " ranks to arrive, but the store is gone, which rank 0 or the "
            "launcher hosts; its own output says why (" +
            first_line(error.what()) + ")");
  } catch (const c10::Error&) {
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
  std::vector<std::string> texts(static_cast<size_t>(world_size));
  if (const auto last = store.get_to_str(kAllArrived); !last.empty()) {
    const int who = std::stoi(last);
    texts[static_cast<size_t>(who)] = store.get_to_str(arrival_key(who));
    return texts;
  }
  std::vector<std::string> keys;
  for (int peer = 0; peer < world_size; ++peer) {
    keys.push_back(arrival_key(peer));
  }
  const auto values = get_all(store, keys);
  std::transform(
      values.begin(), values.end(), texts.begin(), [](const auto& value) {
        return std::string(value.begin(), value.end());
      });
  return texts;
}

std::vector<Arrival> exchange_arrivals(c10d::Store& store,
                                       int rank,
                                       int world_size,
                                       const Arrival& mine,
                                       milliseconds timeout) {
  std::vector<Arrival> arrivals;
  for (const auto& text :
       exchange_texts(store,
                      rank,
                      world_size,
                      join_fields({mine.backend, mine.error}),
                      timeout,
                      /*is_last=*/!mine.error.empty())) {
    // The text of a rank that was not waited for is empty.
    const auto fields = split_fields(text);
    arrivals.push_back(fields && fields->size() == 2
                           ? Arrival{fields->front(), fields->back()}
                           : Arrival{});
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
