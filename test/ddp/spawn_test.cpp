// The tests fork, so this is a separate program, in which no earlier test has
// started threads. A rank cannot use Catch2's macros: it throws, and spawn()
// throws an error with the text here.
#include "ddp/spawn.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <thread>

#include "ddp/base/cluster/launch_environment.h"
#include "ddp/base/file_descriptor.h"
#include "ddp/base/net/tcp.h"
#include "ddp/collectives.h"
#include "ddp/job/backends.h"
#include "ddp/process_group.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace spawn_test {

using Catch::Contains;
using detail::make_pipe;
using detail::Pipe;
using std::chrono::milliseconds;

/// Memory that this process shares with its ranks.
template <typename T>
class Shared {
 public:
  Shared()
      : value_(new (::mmap(nullptr,
                           sizeof(T),
                           PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS,
                           -1,
                           0)) T{}) {}
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

void write_letter(const Pipe& pipe, char letter) {
  TORCH_CHECK(::write(pipe.write.get(), &letter, 1) == 1);
}

/// Reads the next letter. Returns std::nullopt after all writers have closed
/// the pipe; throws if no letter comes within a minute.
std::optional<char> read_letter(const Pipe& pipe) {
  pollfd ready{pipe.read.get(), POLLIN, 0};
  TORCH_CHECK(::poll(&ready, 1, 60'000) == 1, "no letter");
  char letter = 0;
  return ::read(pipe.read.get(), &letter, 1) == 1 ? std::optional(letter)
                                                  : std::nullopt;
}

bool has_children() {
  return ::waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD;
}

int64_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

/// Returns the text of the error that spawn() throws. Checks that no child
/// process and no open file is left.
template <typename Function>
std::string failure_of(Function function, int nprocs) {
  const int64_t files = open_files();
  std::string failure;
  try {
    spawn(function, nprocs);
  } catch (const c10::Error& error) {
    failure = error.what();
  }
  CHECK_FALSE(has_children());
  CHECK(open_files() == files);
  return failure;
}

[[noreturn]] void sleep_forever() {
  while (true) {
    ::pause();
  }
}

/// Checks an all-reduce that adds 1 .. n over n ranks.
void add_up(int local_rank) {
  init_process_group(ProcessGroupOptions().backend("gloo"));
  const int64_t n = world_size();
  TORCH_CHECK(rank() == local_rank && ddp::local_rank() == local_rank);
  const auto sum =
      reduce_tensor(at::full({100}, rank() + 1, at::kLong), Reduction::sum);
  TORCH_CHECK(at::equal(sum, at::full({100}, n * (n + 1) / 2, at::kLong)));
  destroy_process_group();
}

TEST_CASE("ranks form a process group") {
  for (const int count : {1, 2, 3, 4}) {
    const Shared<std::atomic<int>> sum;
    spawn(
        [&](int local_rank) {
          TORCH_CHECK(WorkerEnv::read().world_size == count);
          add_up(local_rank);
          *sum += local_rank + 1;
        },
        count);
    CHECK(*sum == count * (count + 1) / 2);
    CHECK_FALSE(has_children());
  }
}

TEST_CASE("a program that has computed with one thread can spawn") {
  at::set_num_threads(1);
  auto weight = at::ones({4}).requires_grad_();
  weight.sum().backward();
  spawn(
      [&](int local_rank) {
        (weight * 3).sum().backward();
        TORCH_CHECK(at::equal(weight.grad(), at::full({4}, 4.0)));
        add_up(local_rank);
      },
      2);
  // Changes in the ranks' memory do not reach this process.
  CHECK(at::equal(weight.grad(), at::ones({4})));
}

detail::LaunchEnvironment environment_of(int local_rank,
                                         int ranks,
                                         int port,
                                         const EnvReader& caller) {
  return detail::launch_environment(
      detail::local_worker(local_rank, ranks, port, "spawn"), caller);
}

TEST_CASE("the environment is torchrun's") {
  const auto none = [](const char*) -> const char* { return nullptr; };
  const auto variables = environment_of(2, 3, 1234, none);
  const auto env = WorkerEnv::read([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  CHECK(env.launched);
  CHECK(env.rank == 2);
  CHECK(env.local_rank == 2);
  CHECK(env.world_size == 3);
  CHECK(env.local_world_size == 3);
  CHECK(env.host_count == 1);
  CHECK(env.master_addr == "127.0.0.1");
  CHECK(env.master_port == 1234);
  CHECK_FALSE(env.use_agent_store);
  // All variables that torchrun's manual lists, and the others that its agent
  // sets.
  CHECK(variables ==
        detail::LaunchEnvironment{{"LOCAL_RANK", "2"},
                                  {"RANK", "2"},
                                  {"GROUP_RANK", "0"},
                                  {"ROLE_RANK", "2"},
                                  {"ROLE_NAME", "default"},
                                  {"LOCAL_WORLD_SIZE", "3"},
                                  {"WORLD_SIZE", "3"},
                                  {"GROUP_WORLD_SIZE", "1"},
                                  {"ROLE_WORLD_SIZE", "3"},
                                  {"MASTER_ADDR", "127.0.0.1"},
                                  {"MASTER_PORT", "1234"},
                                  {"TORCHELASTIC_RESTART_COUNT", "0"},
                                  {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                  {"TORCHELASTIC_RUN_ID", "spawn"},
                                  {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                  {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                  {"OMP_NUM_THREADS", "1"}});

  const auto some = [](const char* name) {
    return std::string(name) == "OMP_NUM_THREADS" ? "5" : nullptr;
  };
  CHECK(environment_of(0, 2, 1, some).count("OMP_NUM_THREADS") == 0);
  CHECK(environment_of(0, 1, 1, none).count("OMP_NUM_THREADS") == 0);
}

TEST_CASE("ranks get the environment, and this process keeps its own") {
  REQUIRE(::setenv("RANK", "77", 1) == 0);
  REQUIRE(::unsetenv("OMP_NUM_THREADS") == 0);
  REQUIRE(::unsetenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == 0);
  at::set_num_threads(2);
  spawn(
      [](int local_rank) {
        const auto none = [](const char*) -> const char* { return nullptr; };
        const auto port = std::stoi(std::getenv("MASTER_PORT"));
        for (const auto& [name, value] :
             environment_of(local_rank, 2, port, none)) {
          TORCH_CHECK(std::getenv(name.c_str()) == value, name);
        }
        TORCH_CHECK(at::get_num_threads() == 1);
      },
      2);
  CHECK(std::getenv("RANK") == std::string("77"));
  CHECK(std::getenv("WORLD_SIZE") == nullptr);
  ::unsetenv("RANK");
}

TEST_CASE("the first error comes back with its rank") {
  const auto failure = failure_of(
      [](int local_rank) {
        init_process_group(ProcessGroupOptions().backend("gloo"));
        TORCH_CHECK(local_rank != 2, "no data for ", local_rank);
        barrier();  // fails, too: a peer leaves
      },
      3);
  CHECK(failure == "rank 2 threw: no data for 2");
}

TEST_CASE("an exception of any type and size comes back") {
  CHECK(failure_of([](int) { throw std::runtime_error("plain"); }, 1) ==
        "rank 0 threw: plain");
  CHECK(failure_of([](int) { throw std::runtime_error(""); }, 1) ==
        "rank 0 threw: ");
  CHECK_THAT(failure_of([](int) { throw 5; }, 1),
             Contains("rank 0 threw") && Contains("no std::exception"));
  const std::string page(4000, 'x');
  CHECK(failure_of([&](int) { throw std::runtime_error(page); }, 1) ==
        "rank 0 threw: " + page);
  const std::string book(1 << 20, 'x');
  CHECK_THAT(failure_of([&](int) { throw std::runtime_error(book); }, 1),
             Catch::StartsWith("rank 0 threw: " + page));
}

TEST_CASE("more ranks throw than a pipe has pages") {
  CHECK_THAT(failure_of([](int) { throw std::runtime_error("all"); }, 24),
             Catch::Matches("rank [0-9]+ threw: all"));
}

TEST_CASE("a rank that ends without a word is named") {
  const auto rank_1 = [](const std::function<void()>& end) {
    return failure_of(
        [end](int local_rank) {
          if (local_rank == 1) {
            end();
          }
          sleep_forever();
        },
        3);
  };
  CHECK(rank_1([] { ::raise(SIGKILL); }) ==
        "rank 1 was ended by signal 9 (Killed)");
  CHECK(rank_1([] {
          ::signal(SIGSEGV, SIG_DFL);  // removes Catch2's handler
          ::raise(SIGSEGV);
        }) == "rank 1 was ended by signal 11 (Segmentation fault)");
  CHECK(rank_1([] {
          ::signal(SIGABRT, SIG_DFL);
          std::abort();
        }) == "rank 1 was ended by signal 6 (Aborted)");
  CHECK(rank_1([] { ::_exit(3); }) == "rank 1 exited with code 3");
}

TEST_CASE("the others are killed, also one that ignores SIGTERM") {
  const Pipe pipe = make_pipe();
  const auto failure = failure_of(
      [&](int local_rank) {
        if (local_rank == 0) {
          ::signal(SIGTERM, SIG_IGN);
          write_letter(pipe, 'r');
          sleep_forever();
        }
        read_letter(pipe);
        TORCH_CHECK(false, "first");
      },
      2);
  CHECK(failure == "rank 1 threw: first");
}

TEST_CASE("no rank outlives the process that made it") {
  Pipe pipe = make_pipe();
  const pid_t parent = ::fork();
  REQUIRE(parent >= 0);
  if (parent == 0) {
    try {
      spawn(
          [&](int /*local_rank*/) {
            ::signal(SIGTERM, SIG_IGN);
            write_letter(pipe, 'r');
            sleep_forever();
          },
          2);
    } catch (...) {
    }
    ::_exit(0);
  }
  CHECK(read_letter(pipe) == 'r');
  CHECK(read_letter(pipe) == 'r');
  ::kill(parent, SIGKILL);
  REQUIRE(::waitpid(parent, nullptr, 0) == parent);
  pipe.write = {};
  CHECK_FALSE(read_letter(pipe).has_value());
}

TEST_CASE("ranks print once, and run no exit handlers of the program") {
  test::TemporaryFolder folder;
  const std::string file = folder / "out";
  static Shared<std::atomic<int>> exits;
  std::atexit([] { *exits += 1; });
  std::cout.flush();
  std::fflush(nullptr);
  const int real = ::dup(STDOUT_FILENO);
  REQUIRE(std::freopen(file.c_str(), "w", stdout) != nullptr);
  std::printf("before;");
  spawn(
      [](int /*local_rank*/) {
        std::printf("rank;");
        std::cout << "stream;";
      },
      2);
  std::fflush(stdout);
  ::dup2(real, STDOUT_FILENO);
  ::close(real);
  const auto text = test::read_file(file);
  const auto count = [&](const std::string& word) {
    size_t found = 0;
    for (size_t at = text.find(word); at != std::string::npos;
         at = text.find(word, at + 1)) {
      ++found;
    }
    return found;
  };
  CHECK(count("before;") == 1);
  CHECK(count("rank;") == 2);
  CHECK(count("stream;") == 2);
  CHECK(*exits == 0);
}

TEST_CASE("a process with threads is refused") {
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) {
      std::this_thread::yield();
    }
  });
  CHECK_THROWS_WITH(spawn([](int) {}, 2),
                    Contains("one thread") && Contains("got 2") &&
                        Contains("before the first tensor operation") &&
                        Contains("ddprun"));
  done = true;
  other.join();
  CHECK_FALSE(has_children());
  CHECK_NOTHROW(spawn([](int) {}, 2));
}

TEST_CASE("an ignored SIGCHLD is an error") {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  CHECK_THROWS_WITH(spawn([](int) {}, 1), Contains("SIGCHLD"));
  ::signal(SIGCHLD, before);
}

TEST_CASE("a rank that other code has waited for is an error") {
  const auto before = ::signal(SIGUSR1, [](int) { ::waitpid(-1, nullptr, 0); });
  const Pipe pipe = make_pipe();
  const auto failure = failure_of(
      [&](int local_rank) {
        if (local_rank == 0) {
          read_letter(pipe);
          return;
        }
        ::kill(::getppid(), SIGUSR1);
        write_letter(pipe, 'e');
        sleep_forever();
      },
      2);
  CHECK_THAT(failure,
             Contains("how rank 0 ended, but") &&
                 Contains("other code of this process has waited"));
  ::signal(SIGUSR1, before);
}

TEST_CASE("nprocs must be positive, and a function there") {
  for (const int count : {0, -1}) {
    CHECK_THROWS_WITH(
        spawn([](int) {}, count),
        Contains("at least one process") && Contains(std::to_string(count)));
  }
  CHECK_THROWS_WITH(spawn(nullptr, 1), Contains("function"));
}

TEST_CASE("a reserved port can be listened on by number alone") {
  const auto reserved = detail::reserve_loopback_port();
  REQUIRE(reserved.error == 0);
  CHECK(detail::reserve_loopback_port().port != reserved.port);
  CHECK(detail::listen_for_ranks("127.0.0.1", reserved.port));
}

TEST_CASE("fifty jobs in a row") {
  const int64_t files = open_files();
  for (int i = 0; i < 50; ++i) {
    spawn(add_up, 2);
  }
  CHECK_FALSE(has_children());
  CHECK(open_files() == files);
}

}  // namespace spawn_test
}  // namespace ddp
