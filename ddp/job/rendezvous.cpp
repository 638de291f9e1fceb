#include "ddp/job/rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
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
/// One of the following and a text.
constexpr const char* kAnswer = "answer";
constexpr char kAgreed = 'a';
constexpr char kRefused = 'r';
constexpr char kNextAttempt = 'n';

/// Rank 0's answer may come so much later than the others' time limits.
constexpr milliseconds kAnswerPatience{2'000};

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

/// Connects with a short time limit per attempt, because LibTorch's client
/// retries again and again to connect to a server that has ended.
c10::intrusive_ptr<c10d::Store> connect_with_store(
    const WorkerEnv& env, c10d::TCPStoreOptions options, milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  for (auto patience = kFirstStoreTry;;
       patience = std::min(2 * patience, kLongestStoreTry)) {
    wait_for_store(env, std::max(time_until(deadline), milliseconds(1)));
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

/// Reads all texts, by few requests if the store supports it.
std::vector<std::string> read_texts(c10d::Store& store, int size) {
  constexpr int kAtOnce = 1000;
  std::vector<std::string> texts;
  for (int first = 0; first < size; first += kAtOnce) {
    std::vector<std::string> keys;
    for (int rank = first; rank < std::min(size, first + kAtOnce); ++rank) {
      keys.push_back(arrival_key(rank));
    }
    if (!store.hasExtendedApi()) {
      std::transform(keys.begin(),
                     keys.end(),
                     std::back_inserter(texts),
                     [&](const auto& key) { return store.get_to_str(key); });
      continue;
    }
    for (const auto& value : store.multiGet(keys)) {
      texts.emplace_back(value.begin(), value.end());
    }
  }
  return texts;
}

void add_missing(c10d::Store& store,
                 int first,
                 int end,
                 const std::function<std::string(int)>& key_of,
                 std::vector<int>& missing) {
  std::vector<std::string> keys;
  for (int rank = first; rank < end; ++rank) {
    keys.push_back(key_of(rank));
  }
  if (keys.empty() || store.check(keys)) {
    return;
  }
  if (keys.size() == 1) {
    missing.push_back(first);
    return;
  }
  const int middle = first + (end - first) / 2;
  add_missing(store, first, middle, key_of, missing);
  add_missing(store, middle, end, key_of, missing);
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

std::string problem_in(const std::vector<std::string>& texts) {
  std::vector<Arrival> arrivals;
  arrivals.reserve(texts.size());
  for (const auto& text : texts) {
    const auto fields = split_fields(text);
    arrivals.push_back(fields && fields->size() == 2
                           ? Arrival{fields->front(), fields->back()}
                           : Arrival{});
  }
  return arrivals_problem(arrivals);
}

/// Rank 0's part of a meeting.
std::string make_answer(c10d::Store& store,
                        const RankOf& place,
                        milliseconds timeout) {
  if (!wait_for_key(store, kAllArrived, timeout, place.size)) {
    const auto missing = missing_ranks(store, place.size, arrival_key);
    return kRefused + missing_error(place.size,
                                    timeout,
                                    std::to_string(missing.size()) +
                                        " did not: " + rank_list(missing));
  }
  if (store.check({kAnswer})) {
    return store.get_to_str(kAnswer);  // a rank has refused
  }
  const auto problem = problem_in(read_texts(store, place.size));
  return (problem.empty() ? kAgreed : kRefused) + problem;
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

/// Announces this rank in an attempt and waits for rank 0's answer. Returns
/// false if another attempt has begun.
/// @throws c10::Error on every rank as `meet` does. A rank with an error ends
///   the wait of all.
bool join_attempt(c10d::Store& store,
                  const RankOf& place,
                  const Arrival& mine,
                  milliseconds timeout) {
  store.set(arrival_key(place.rank), join_fields({mine.backend, mine.error}));
  if (!mine.error.empty()) {
    store.set(
        kAnswer,
        kRefused + ("rank " + std::to_string(place.rank) + ": ") + mine.error);
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
  if (kind == kNextAttempt) {
    return false;
  }
  if (kind == kRefused) {
    // The host of the store stays until all ranks have read the answer.
    store_barrier(store,
                  "refused",
                  place.size,
                  place.rank == 0 ? kAnswerPatience : milliseconds(1));
    TORCH_CHECK(false, answer);
  }
  return true;
}

std::string open_key(int64_t number) {
  return "open/" + std::to_string(number);
}

c10::intrusive_ptr<c10d::Store> keys_of_attempt(
    const c10::intrusive_ptr<c10d::Store>& store, int64_t number) {
  return c10::make_intrusive<c10d::PrefixStore>("job_" + std::to_string(number),
                                                store);
}

/// Opens the next attempt; ranks that wait in the one before follow.
int64_t open_attempt(const c10::intrusive_ptr<c10d::Store>& store, int size) {
  const int64_t number = store->add("attempt", 1);
  store->set(open_key(number), std::to_string(size));
  const auto before = keys_of_attempt(store, number - 1);
  if (number > 1 && !before->check({kAnswer})) {
    before->set(kAnswer, std::string(1, kNextAttempt));
  }
  return number;
}

/// Returns the next attempt, from `number` on, that has ranks of this number
/// and was not joined by this rank.
int64_t find_attempt(const c10::intrusive_ptr<c10d::Store>& store,
                     int64_t number,
                     const RankOf& place,
                     steady_clock::time_point deadline,
                     milliseconds timeout) {
  const auto joined = "joined/" + std::to_string(place.rank);
  for (;; ++number) {
    TORCH_CHECK(wait_for_key(
                    *store, open_key(number), time_until(deadline), place.size),
                missing_error(place.size, timeout, "1 did not: rank 0"));
    if (store->get_to_str(open_key(number)) == std::to_string(place.size) &&
        keys_of_attempt(store, number)->add(joined, 1) == 1) {
      return number;
    }
  }
}

}  // namespace

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
  if (!options.isServer) {
    return connect_with_store(env, options, timeout);
  }
  options.timeout = timeout;
  options.masterListenFd = listen_for_store(env);
  return c10::make_intrusive<c10d::TCPStore>(env.master_addr, options);
}

std::vector<int> missing_ranks(c10d::Store& store,
                               int world_size,
                               const std::function<std::string(int)>& key_of) {
  std::vector<int> missing;
  add_missing(store, 0, world_size, key_of, missing);
  return missing;
}

c10::intrusive_ptr<c10d::Store> meet(
    const c10::intrusive_ptr<c10d::Store>& store,
    const RankOf& place,
    const Arrival& mine,
    milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  int64_t number = place.rank == 0
                       ? open_attempt(store, place.size)
                       : std::max(store->add("attempt", 0), int64_t{1});
  for (;; ++number) {
    if (place.rank > 0) {
      number = find_attempt(store, number, place, deadline, timeout);
    }
    const auto keys = keys_of_attempt(store, number);
    if (join_attempt(*keys,
                     place,
                     mine,
                     std::max(time_until(deadline), milliseconds(1)))) {
      return keys;
    }
    TORCH_CHECK(place.rank > 0,
                "Expected one rank 0, but another one has begun an attempt of "
                "this job; was the job started twice?");
  }
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
      store.set(name + "/all", "1");
    }
    store.wait({name + "/all"}, timeout);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace ddp::detail
