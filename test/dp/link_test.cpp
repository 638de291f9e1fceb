#include "dp/servers/detail/link.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <future>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddp/job/backends.h"
#include "dp/servers/detail/coordinator.h"
#include "test/dp/threads.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

namespace dp::detail {
namespace link_test {

using std::chrono::milliseconds;

/// Both ends of a link.
struct Ends {
  explicit Ends(milliseconds timeout = milliseconds(60'000)) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto connect = [&](int rank) {
      ddp::detail::BackendSpec spec;
      spec.store = store;
      spec.rank = rank;
      spec.size = 2;
      spec.timeout = milliseconds(60'000);
      return std::make_unique<Link>(
          ddp::detail::make_gloo_backend(spec), "the peer", timeout);
    };
    auto other = std::async(std::launch::async, [&] { worker = connect(1); });
    server = connect(0);
    test::get_in_time(other, "the worker's connection");
  }
  std::unique_ptr<Link> server, worker;
};

TEST_CASE("messages come as they were sent", "[link]") {
  Ends ends;
  const auto payload = torch::arange(100'000, torch::kByte);
  auto sender = std::async(std::launch::async, [&] {
    ends.worker->post(
        {.op = Op::push, .version = 7, .loss = 0.25, .numbers = {5, -2}},
        payload);
    ends.worker->post({.op = Op::failure, .text = "why"});
    ends.worker->flush();
  });
  const auto push = ends.server->receive();
  CHECK(push.numbers == std::vector<int64_t>{5, -2});
  CHECK(push.op == Op::push);
  CHECK(push.version == 7);
  CHECK(push.loss == 0.25);
  CHECK(push.text.empty());
  const auto got = torch::zeros({100'000}, torch::kByte);
  ends.server->receive_payload(got);
  CHECK(got.equal(payload));
  const auto failure = ends.server->receive();
  CHECK(failure.op == Op::failure);
  CHECK(std::isnan(failure.loss));
  CHECK(failure.text == "why");
  test::get_in_time(sender, "the sender");
}

TEST_CASE("a payload of many pieces comes whole", "[link]") {
  Ends ends;
  const int64_t size =
      GENERATE(as<int64_t>(), kPieceBytes, 2 * kPieceBytes + 1);
  const auto payload = torch::arange(size).to(torch::kByte);
  auto sender = std::async(std::launch::async, [&] {
    ends.worker->send({.op = Op::push}, payload);
  });
  CHECK(ends.server->receive().op == Op::push);
  const auto got = torch::zeros({size}, torch::kByte);
  ends.server->receive_payload(got);
  CHECK(got.equal(payload));
  test::get_in_time(sender, "the sender");
}

TEST_CASE("a header says what it was made of", "[link]") {
  for (int64_t op = 0; op <= static_cast<int64_t>(Op::failure); ++op) {
    const Message message{static_cast<Op>(op), op - 3, 0.5, "why"};
    const auto header = decode_header(encode_header(message));
    CHECK(header.message.op == message.op);
    CHECK(header.message.version == message.version);
    CHECK(header.message.loss == message.loss);
    CHECK(header.text_bytes == 3);
  }
  const std::string text(2 * kMaxTextBytes, 'x');
  CHECK(decode_header(encode_header({.text = text})).text_bytes ==
        kMaxTextBytes);
  CHECK(decode_text(encode_text(text)) == text.substr(0, kMaxTextBytes));
}

TEST_CASE("what is no header is refused", "[link][errors]") {
  const auto with = [](int64_t index, int64_t number) {
    auto header = encode_header({.text = "why"});
    header.mutable_data_ptr<int64_t>()[index] = number;
    return header;
  };
  const int64_t wrong = GENERATE(-1, 1'000'000'000'000);
  CHECK_THROWS_WITH(decode_header(with(0, wrong)),
                    Catch::Contains("run the same build on all ranks"));
  CHECK_THROWS_WITH(decode_header(with(1, wrong)),
                    Catch::Contains("Expected a message that this build knows, "
                                    "but got number " +
                                    std::to_string(wrong)));
  CHECK_THROWS_WITH(decode_header(with(4, wrong)),
                    Catch::Contains("Expected a text of at most"));
  CHECK_THROWS_WITH(decode_header(with(5, wrong)),
                    Catch::Contains("Expected at most"));
}

TEST_CASE("a peer that goes is an error of the wait", "[link][errors]") {
  Ends ends;
  auto other = std::async(std::launch::async, [&] { ends.worker.reset(); });
  CHECK_THROWS_WITH(ends.server->receive(),
                    Catch::Contains("the peer is gone: "));
  test::get_in_time(other, "the peer's end");
  CHECK_THROWS_WITH(ends.server->receive(),
                    Catch::Contains("the peer is gone: "));
  CHECK_THROWS_WITH(ends.server->send({.op = Op::wait}),
                    Catch::Contains("the peer is gone: "));
}

/// Returns a Gloo backend whose peer may be another process.
c10::intrusive_ptr<c10d::Backend> connect_by(const std::string& file,
                                             int rank) {
  ddp::detail::BackendSpec spec;
  spec.store = c10::make_intrusive<c10d::FileStore>(file, 2);
  spec.rank = rank;
  spec.size = 2;
  spec.timeout = milliseconds(60'000);
  return ddp::detail::make_gloo_backend(spec);
}

// More bytes than the kernel buffers for a peer that does not read.
constexpr int64_t kMuch = int64_t{64} << 20;

// Runs in a process of the test below: requests a payload and stops itself.
TEST_CASE("a peer that stops while it is sent to", "[.peer]") {
  const auto group = connect_by(std::getenv("LINK_TEST_FILE"), 1);
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  std::vector<torch::Tensor> tensors{empty_header()};
  works.push_back(group->recv(tensors, 0, 0));
  for (const auto& piece : pieces_of(torch::empty({kMuch}, torch::kByte))) {
    tensors = {piece};
    works.push_back(group->recv(tensors, 0, 0));
  }
  ::raise(SIGSTOP);
}

TEST_CASE("a peer that dies while it is sent to is gone", "[link][errors]") {
  const ddp::test::TemporaryFolder folder;
  ::setenv("LINK_TEST_FILE", (folder / "store").c_str(), 1);
  const pid_t peer = ::fork();
  REQUIRE(peer >= 0);
  if (peer == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::execl("/proc/self/exe", "link_test", "[.peer]", nullptr);
    ::_exit(127);
  }
  Link link(connect_by(folder / "store", 0), "the peer", 2 * test::kPatience);
  int status = 0;
  REQUIRE(::waitpid(peer, &status, WUNTRACED) == peer);
  REQUIRE(WIFSTOPPED(status));
  auto sends = std::async(std::launch::async, [&] {
    link.send({.op = Op::push}, torch::zeros({kMuch}, torch::kByte));
  });
  CHECK(sends.wait_for(milliseconds(50)) == std::future_status::timeout);
  ::kill(peer, SIGKILL);
  ::waitpid(peer, nullptr, 0);
  CHECK_THROWS_WITH(
      test::get_in_time(sends, "the peer's end"),
      Catch::Contains("the peer is gone: ") && !Catch::Contains("Timed out"));
}

TEST_CASE("a peer that is silent is gone", "[link][errors]") {
  Ends ends(milliseconds(50));
  CHECK_THROWS_WITH(
      ends.server->receive(),
      Catch::Contains("the peer is gone: Timed out waiting 50ms"));
}

TEST_CASE("abort ends what waits and what comes later", "[link]") {
  Ends ends;
  auto waits = std::async(std::launch::async, [&] { ends.server->receive(); });
  ends.server->abort();
  CHECK_THROWS_WITH(test::get_in_time(waits, "the aborted receive"),
                    Catch::Contains("was given up"));
  CHECK_THROWS_WITH(ends.server->receive(), Catch::Contains("was given up"));
}

std::unique_ptr<torch::optim::Optimizer> sgd(
    const std::vector<torch::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, 1.0);
}

TEST_CASE("who waits is told how the job ended", "[coordinator]") {
  const std::vector<torch::Tensor> parameters{torch::zeros({1})};
  Shard shard(parameters, sgd, nullptr);
  Coordinator coordinator(synchronous_updates({"a", "b"}), parameters, 2, 2);
  coordinator.serve(shard);
  coordinator.ask(0);
  REQUIRE(coordinator.take(0, milliseconds(0)));
  REQUIRE(coordinator.memory_for(0, milliseconds(0)));
  coordinator.push(0, {1}, 0);
  coordinator.make_updates();
  CHECK_FALSE(coordinator.take(0, milliseconds(1)));
  CHECK_FALSE(coordinator.acquire_final(milliseconds(1)));
  auto waits = std::async(std::launch::async,
                          [&] { coordinator.take(0, milliseconds(60'000)); });
  coordinator.lose(1, "b is gone");
  coordinator.make_updates();
  CHECK_THROWS_WITH(test::get_in_time(waits, "the take"), "b is gone");
  CHECK_THROWS_AS(coordinator.acquire_final(milliseconds(0)), JobEnded);
  CHECK(coordinator.failure() == "b is gone");
  coordinator.fail("later");
  coordinator.push(0, {1}, 0);  // does nothing
  CHECK(coordinator.failure() == "b is gone");
  CHECK(coordinator.report().updates == 0);
}

}  // namespace link_test
}  // namespace dp::detail
