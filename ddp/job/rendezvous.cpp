#include "ddp/job/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ddp/base/net/tcp.h"
#include "ddp/base/text/rank_text.h"
#include "ddp/job/error_text.h"

namespace ddp::detail {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* kAllArrived = "arrived/all";
/// One of the following and a text.
constexpr const char* kAnswer = "answer";
constexpr char kAgreed = 'a';
constexpr char kRefused = 'r';
constexpr char kNextAttempt = 'n';

/// Time that the other ranks wait for rank 0's answer after their time limits.
constexpr milliseconds kAnswerPatience{2'000};

/// Time limit for resolving a host name.
constexpr milliseconds kResolvePatience{10'000};

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

/// Returns a name that differs from that of every other host, behind the name
/// that other hosts know.
std::string name_of_host() {
  std::string name(HOST_NAME_MAX + 1, '\0');
  ::gethostname(name.data(), name.size() - 1);
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return name.c_str() + (" " + boot_id);
}

std::vector<std::string> gather_texts(const TextAllGather& all_gather,
                                      const std::string& mine,
                                      int size) {
  auto texts = all_gather(mine.substr(0, kMostGatheredBytes - 1));
  TORCH_CHECK(
      static_cast<int>(texts.size()) == size,
      "Expected ProcessGroupOptions::text_all_gather to return the texts of ",
      size,
      " ranks, but got ",
      texts.size());
  return texts;
}

/// Listens with a socket of our own instead of the store's. Other hosts cannot
/// reach it if MASTER_ADDR is local, and a port in use gives one line instead
/// of many.
FileDescriptor listen_for_store(const WorkerEnv& env) {
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
  return listener;
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

/// @param listener  of rank 0's store; empty: the store is another process's.
c10::intrusive_ptr<c10d::Store> connect_store(const WorkerEnv& env,
                                              FileDescriptor listener,
                                              milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(env.master_port);
  options.isServer = static_cast<bool>(listener);
  options.waitWorkers = false;
  options.timeout = timeout;
  if (options.isServer) {
    options.masterListenFd = listener.release();
  } else {
    wait_for_store(env, timeout);
  }
  return c10::make_intrusive<c10d::TCPStore>(env.master_addr, options);
}

std::string arrival_key(int rank) {
  return "arrived/" + std::to_string(rank);
}

std::vector<int> missing_ranks(c10d::Store& store, int size) {
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    if (!store.check({arrival_key(rank)})) {
      missing.push_back(rank);
    }
  }
  return missing;
}

std::string missing_error(int size,
                          milliseconds timeout,
                          const std::string& who) {
  std::ostringstream text;
  text << "Expected " << size << " ranks to arrive within "
       << static_cast<double>(timeout.count()) / 1000.0 << " s, but " << who
       << ". Were they started, with the same WORLD_SIZE, MASTER_ADDR and "
          "MASTER_PORT?";
  return text.str();
}

/// Waits for a key. Returns false on time-out.
/// @throws c10::Error if the store is gone.
bool wait_for_key(c10d::Store& store,
                  const std::string& key,
                  milliseconds timeout,
                  int size) {
  try {
    store.wait({key}, std::max(timeout, milliseconds(1)));
    return true;
  } catch (const c10::DistNetworkError& error) {
    C10_THROW_ERROR(
        DistNetworkError,
        "Expected " + std::to_string(size) +
            " ranks to arrive, but the store is gone, which rank 0 or the "
            "launcher hosts; its own output says why (" +
            first_line(error.what()) + ")");
  } catch (const c10::Error&) {
    return false;
  }
}

/// Rank 0's part of a meeting.
std::string make_answer(c10d::Store& store,
                        const RankOf& place,
                        milliseconds timeout) {
  if (!wait_for_key(store, kAllArrived, timeout, place.size)) {
    const auto missing = missing_ranks(store, place.size);
    return kRefused + missing_error(place.size,
                                    timeout,
                                    std::to_string(missing.size()) +
                                        " did not: " + rank_list(missing));
  }
  const bool has_refusal = store.check({kAnswer});
  return has_refusal ? store.get_to_str(kAnswer) : std::string(1, kAgreed);
}

/// Returns the answer with its first letter.
std::string await_answer(c10d::Store& store,
                         const RankOf& place,
                         milliseconds timeout) {
  if (wait_for_key(store, kAnswer, timeout + kAnswerPatience, place.size)) {
    return store.get_to_str(kAnswer);
  }
  const bool has_host = store.check({arrival_key(0)});
  return kRefused +
         missing_error(place.size,
                       timeout,
                       has_host ? "some did not, of which rank 0 has the list"
                                : "1 did not: rank 0");
}

/// Keeps the host of the store until all ranks have read the answer.
void wait_for_readers(c10d::Store& store, const RankOf& place) {
  if (store.add("read/count", 1) == place.size) {
    store.set("read/all", "");
  }
  if (place.rank == 0) {
    wait_for_key(store, "read/all", kAnswerPatience, place.size);
  }
}

/// Announces this rank in an attempt and waits for rank 0's answer. Returns
/// false if another attempt has begun.
/// @param problem  why this rank cannot take part, or "". It ends the wait of
///   all ranks.
/// @throws c10::Error on every rank as `meet` does.
bool join_attempt(c10d::Store& store,
                  const RankOf& place,
                  const std::string& problem,
                  milliseconds timeout) {
  store.set(arrival_key(place.rank), "");
  if (!problem.empty()) {
    store.set(
        kAnswer,
        kRefused + ("rank " + std::to_string(place.rank) + ": ") + problem);
    store.set(kAllArrived, "");
  } else if (store.add("arrived/count", 1) == place.size) {
    store.set(kAllArrived, "");
  }
  std::string answer;
  if (place.rank == 0) {
    answer = make_answer(store, place, timeout);
    store.set(kAnswer, answer);
  } else {
    answer = await_answer(store, place, timeout);
  }
  const char kind = answer.empty() ? kRefused : answer.front();
  answer.erase(0, 1);
  if (kind == kRefused) {
    wait_for_readers(store, place);
    TORCH_CHECK(false, answer);
  }
  return kind != kNextAttempt;
}

std::string open_key(int64_t number) {
  return "open/" + std::to_string(number);
}

c10::intrusive_ptr<c10d::Store> keys_of_attempt(
    const c10::intrusive_ptr<c10d::Store>& store, int64_t number) {
  return c10::make_intrusive<c10d::PrefixStore>("job_" + std::to_string(number),
                                                store);
}

/// The record of an attempt that rank 0 publishes.
std::string description_of(int size, const std::string& backend) {
  return std::to_string(size) + " " + backend;
}

/// Opens the next attempt; ranks that wait in the one before follow.
int64_t open_attempt(const c10::intrusive_ptr<c10d::Store>& store,
                     int size,
                     const Arrival& mine) {
  const int64_t number = store->add("attempt", 1);
  // If rank 0 has an error, there is no backend to compare.
  store->set(open_key(number),
             description_of(size, mine.error.empty() ? mine.backend : ""));
  const auto before = keys_of_attempt(store, number - 1);
  if (number > 1 && !before->check({kAnswer})) {
    before->set(kAnswer, std::string(1, kNextAttempt));
  }
  return number;
}

/// Returns the next attempt, from `number` on, that has ranks of this number
/// and was not joined by this rank, and rank 0's backend.
std::pair<int64_t, std::string> find_attempt(
    const c10::intrusive_ptr<c10d::Store>& store,
    int64_t number,
    const RankOf& place,
    steady_clock::time_point deadline,
    milliseconds timeout) {
  const auto joined = "joined/" + std::to_string(place.rank);
  const auto beginning = description_of(place.size, "");
  for (;; ++number) {
    TORCH_CHECK(wait_for_key(
                    *store, open_key(number), time_until(deadline), place.size),
                missing_error(place.size, timeout, "1 did not: rank 0"));
    const auto found = store->get_to_str(open_key(number));
    if (found.compare(0, beginning.size(), beginning) == 0 &&
        keys_of_attempt(store, number)->add(joined, 1) == 1) {
      return {number, found.substr(beginning.size())};
    }
  }
}

/// Returns why this rank cannot take part, or "".
std::string problem_of(const Arrival& mine,
                       int rank,
                       const std::string& backend_of_0) {
  if (!mine.error.empty() || backend_of_0.empty() ||
      mine.backend == backend_of_0) {
    return mine.error;
  }
  return "Expected all ranks to use one backend, but rank 0 uses \"" +
         backend_of_0 + "\" and rank " + std::to_string(rank) + " uses \"" +
         mine.backend +
         "\". Name the backend in ProcessGroupOptions, or give every rank a "
         "GPU";
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const WorkerEnv& env,
                                           milliseconds timeout) {
  if (env.master_addr.empty()) {
    return c10::make_intrusive<c10d::HashStore>();
  }
  check_resolves(env, timeout);
  const bool is_host = env.rank == 0 && !env.use_agent_store;
  return connect_store(
      env, is_host ? listen_for_store(env) : FileDescriptor(), timeout);
}

c10::intrusive_ptr<c10d::Store> open_store_by(const TextAllGather& all_gather,
                                              WorkerEnv& env,
                                              milliseconds timeout) {
  const auto hosts = gather_texts(all_gather, name_of_host(), env.world_size);
  const auto& mine = hosts.at(static_cast<size_t>(env.rank));
  env.local_rank = static_cast<int>(
      std::count(hosts.begin(), hosts.begin() + env.rank, mine));
  env.local_world_size =
      static_cast<int>(std::count(hosts.begin(), hosts.end(), mine));
  env.host_count = static_cast<int>(
      std::set<std::string>(hosts.begin(), hosts.end()).size());
  env.master_addr = env.host_count == 1
                        ? "127.0.0.1"
                        : hosts[0].substr(0, hosts[0].find(' '));
  env.use_agent_store = false;
  FileDescriptor listener;
  std::string port;  // or rank 0's error
  if (env.rank == 0) {
    try {
      env.master_port = 0;
      listener = listen_for_store(env);
      port = std::to_string(port_of(own_end(listener)));
    } catch (const std::exception& error) {
      port = text_of(error);
    }
  }
  port = gather_texts(all_gather, port, env.world_size)[0];
  TORCH_CHECK(
      !port.empty() && std::isdigit(static_cast<unsigned char>(port[0])), port);
  env.master_port = std::stoi(port);
  if (env.rank > 0) {
    check_resolves(env, timeout);
  }
  return connect_store(env, std::move(listener), timeout);
}

c10::intrusive_ptr<c10d::Store> meet(
    const c10::intrusive_ptr<c10d::Store>& store,
    const RankOf& place,
    const Arrival& mine,
    milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  int64_t number = place.rank == 0
                       ? open_attempt(store, place.size, mine)
                       : std::max(store->add("attempt", 0), int64_t{1});
  for (;; ++number) {
    auto backend_of_0 = mine.backend;
    if (place.rank > 0) {
      std::tie(number, backend_of_0) =
          find_attempt(store, number, place, deadline, timeout);
    }
    const auto keys = keys_of_attempt(store, number);
    if (join_attempt(*keys,
                     place,
                     problem_of(mine, place.rank, backend_of_0),
                     std::max(time_until(deadline), milliseconds(1)))) {
      return keys;
    }
    TORCH_CHECK(place.rank > 0,
                "Expected one rank 0, but another one has begun an attempt of "
                "this job; was the job started twice?");
  }
}

}  // namespace ddp::detail
