#include "dp/detail/parameter_server/link.h"

#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <future>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddp/detail/process_group/backends.h"
#include "dp/detail/parameter_server/coordinator.h"
#include "test/dp/threads.h"
#include "test/support/catch.h"

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
  REQUIRE(coordinator.take(0, Rows(1), milliseconds(0)));
  REQUIRE(coordinator.lend(0, {kWhole}, milliseconds(0)));
  coordinator.push(0, 0);
  CHECK_FALSE(coordinator.take(0, Rows(1), milliseconds(1)));
  CHECK_FALSE(coordinator.take_last(milliseconds(1)));
  auto waits = std::async(std::launch::async, [&] {
    coordinator.take(0, Rows(1), milliseconds(60'000));
  });
  coordinator.lose(1, "b is gone");
  CHECK_THROWS_WITH(test::get_in_time(waits, "the take"), "b is gone");
  CHECK_THROWS_AS(coordinator.take_last(milliseconds(0)), JobEnded);
  CHECK(coordinator.failure() == "b is gone");
  coordinator.fail("later");
  coordinator.push(0, 0);  // does nothing
  CHECK(coordinator.failure() == "b is gone");
  CHECK(coordinator.report().updates == 0);
}

}  // namespace link_test
}  // namespace dp::detail
