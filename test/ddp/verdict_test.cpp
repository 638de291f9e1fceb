#include "ddp/reduce/detail/verdict.h"

#include <torch/types.h>

#include "ddp/reduce/detail/pass_account.h"
#include "ddp/reduce/detail/update_watch.h"
#include "test/support/catch.h"

namespace ddp::detail {
namespace verdict_test {

using Catch::Contains;

struct Says {
  Stamp stamp;
  bool failed = false;
};

/// Returns whether the ranks agree. Every rank has to read the same result.
bool agree(const std::vector<Says>& ranks, at::ScalarType type) {
  auto sums = torch::zeros({Verdict::kNumel}, type);
  std::deque<Verdict> verdicts;
  for (const auto& says : ranks) {
    const auto elements = torch::empty({Verdict::kNumel}, type);
    verdicts.emplace_back(elements.options());
    verdicts.back().write(elements, says.stamp, says.failed);
    sums += elements;
  }
  std::vector<bool> good;
  for (auto& verdict : verdicts) {
    verdict.read(sums);
    good.push_back(verdict.is_good());
  }
  REQUIRE(std::equal(good.begin() + 1, good.end(), good.begin()));
  return good[0];
}

TEST_CASE("ranks that say the same agree", "[verdict]") {
  const auto type = GENERATE(at::kFloat,
                             at::kDouble,
                             at::kHalf,
                             at::kBFloat16,
                             at::kComplexFloat,
                             at::kInt);
  for (const uint16_t stamp : {0, 1, 0x8000, 0x5555, 0xffff}) {
    const Says same{{stamp}, false};
    CHECK(agree({same}, type));
    CHECK(agree({same, same}, type));
    CHECK(agree({same, same, same, same, same}, type));
  }
}

TEST_CASE("one rank that says other than the others is noticed by all",
          "[verdict]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kComplexFloat);
  const size_t odd = GENERATE(0, 1, 2);
  std::vector<Says> ranks(3, {{0x1234}, false});
  SECTION("it failed") {
    ranks[odd].failed = true;
    CHECK_FALSE(agree(ranks, type));
  }
  SECTION("any bit differs") {
    for (int bit = 0; bit < 16; ++bit) {
      ranks[odd].stamp.bits = static_cast<uint16_t>(0x1234 ^ (1 << bit));
      CHECK_FALSE(agree(ranks, type));
    }
  }
}

TEST_CASE("who does not know bit 0 agrees with all in it", "[verdict]") {
  const Says not_known{{7, false}, false};
  CHECK(agree({not_known, not_known}, at::kFloat));
  for (const uint16_t stamp : {6, 7}) {
    CHECK(agree({not_known, {{stamp}, false}, not_known}, at::kFloat));
    const Says other{{static_cast<uint16_t>(stamp ^ 0x100)}, false};
    CHECK_FALSE(agree({not_known, other}, at::kFloat));
  }
  CHECK_FALSE(agree({{{7}, false}, not_known, {{6}, false}}, at::kFloat));
}

TEST_CASE("passes of different reducers are crossed", "[verdict]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kComplexFloat);
  const bool is_shadow = GENERATE(false, true);
  for (uint8_t other = 0; other < 16; ++other) {
    auto sums = torch::zeros({Verdict::kNumel}, type);
    Verdict verdict(sums.options());
    for (const uint8_t reducer : {uint8_t{5}, other, uint8_t{5}}) {
      const auto elements = torch::empty({Verdict::kNumel}, type);
      verdict.write(elements,
                    is_shadow ? Stamp{0, false, false, reducer}
                              : Stamp{7, true, true, reducer},
                    false);
      sums += elements;
    }
    verdict.read(sums);
    CHECK(verdict.is_good() == (other == 5));
    CHECK(verdict.is_crossed() == (other != 5));
  }
}

TEST_CASE("a thousand ranks in bfloat16, whose sums stand still at 256",
          "[verdict]") {
  std::vector<Says> ranks(1000, {{7}, false});
  CHECK(agree(ranks, at::kBFloat16));
  ranks[999].stamp.bits = 6;
  CHECK_FALSE(agree(ranks, at::kBFloat16));
}

TEST_CASE("a verdict is bad until it is forgiven", "[verdict]") {
  const auto elements = torch::zeros({Verdict::kNumel});
  Verdict verdict(elements.options());
  verdict.write(elements, {3}, true);
  verdict.read(elements);
  verdict.write(elements, {3}, false);
  verdict.read(elements);
  CHECK_FALSE(verdict.is_good());
  CHECK(verdict.wait(std::chrono::milliseconds(0)));
  CHECK_FALSE(verdict.is_settled());
  verdict.forgive();
  CHECK(verdict.is_good());
}

TEST_CASE("ranks stop in the first pass in which all have said it",
          "[verdict]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kComplexFloat);
  const size_t size = GENERATE(1, 2, 5, 300);
  std::vector<std::shared_ptr<StopVote>> votes;
  std::deque<Verdict> verdicts;
  const auto elements = torch::empty({Verdict::kNumel}, type);
  for (size_t rank = 0; rank < size; ++rank) {
    votes.push_back(std::make_shared<StopVote>());
    verdicts.emplace_back(elements.options(), votes.back());
  }
  const auto pass = [&] {
    auto sums = torch::zeros({Verdict::kNumel}, type);
    for (auto& verdict : verdicts) {
      verdict.write(elements, {7}, false);
      sums += elements;
    }
    for (auto& verdict : verdicts) {
      verdict.read(sums);
      REQUIRE(verdict.is_good());
    }
  };
  const auto agreed = [&] {
    const auto count =
        std::count_if(votes.begin(), votes.end(), [](const auto& vote) {
          return vote->is_agreed();
        });
    REQUIRE((count == 0 || count == static_cast<int64_t>(size)));
    return count > 0;
  };
  pass();
  CHECK(!agreed());
  votes.back()->say();
  pass();
  CHECK(agreed() == (size == 1));
  for (const auto& vote : votes) {
    CHECK(vote->says());
  }
  pass();
  CHECK(agreed());
}

TEST_CASE("stamps of passes", "[verdict]") {
  PassAccount account;
  account.number = 12;
  account.without_step = 0;
  const auto stamp = account.stamp();
  CHECK(stamp.knows_bit_0);
  SECTION("do not tell passes apart, and nothing of what is missing") {
    account.number = 13;
    account.missing = {1, 2};
    CHECK(account.stamp().bits == stamp.bits);
  }
  SECTION("tell a step more or less, in bit 0") {
    account.without_step = 1;
    CHECK(account.stamp().bits == (stamp.bits ^ 1));
    CHECK(account.stamp().knows_bit_0);
  }
  SECTION("tell the group's reducers apart, also in a shadow") {
    account.reducer = 18;
    CHECK(account.stamp().bits == stamp.bits);
    CHECK(account.stamp().reducer == 2);
    account.is_shadow = true;
    CHECK(account.stamp().reducer == 2);
  }
  SECTION("say where steps are not known") {
    account.without_step.reset();
    CHECK(!account.stamp().knows_bit_0);
  }
  SECTION("tell what is frozen") {
    std::set<uint16_t> stamps{stamp.bits};
    for (size_t i = 0; i < 100; ++i) {
      account.frozen = {i};
      stamps.insert(account.stamp().bits);
      account.frozen = {i, i + 1};
      stamps.insert(account.stamp().bits);
    }
    CHECK(stamps.size() >= 200);  // one in 32,768 collides by chance
  }
}

TEST_CASE("reports survive the way to another rank", "[verdict]") {
  const auto report =
      GENERATE(PassReport{},
               PassReport{3, 1, "", "b", "", "", ""},
               PassReport{9, 0, "a.x, b", "", "bad luck, twice", "", "c, d"});
  const auto back = report_of(to_text(report));
  CHECK(back.number == report.number);
  CHECK(back.without_step == report.without_step);
  CHECK(back.missing == report.missing);
  CHECK(back.frozen == report.frozen);
  CHECK(back.failure == report.failure);
  CHECK(back.late == report.late);
}

TEST_CASE("what went wrong in a pass, in words", "[verdict]") {
  SECTION("a failure of the pass before comes first") {
    CHECK_THAT(pass_error({{5, 0, "a", "", "", "", ""},
                           {5, 1, "", "", "bad luck", "", ""}}),
               Contains("an exception left one on rank 1: bad luck; the"));
  }
  SECTION("then gradients that came too late") {
    CHECK_THAT(
        pass_error({{5, 0, "a", "", "", "", ""}, {5, 0, "", "", "", "", "b"}}),
        Contains("in a backward pass inside it on rank 1: b; use"));
  }
  SECTION("then what is missing, with ranks and names") {
    const auto text = pass_error({{5, 0, "", "z", "", "", ""},
                                  {5, 1, "a, b", "", "", "", ""},
                                  {5, 0, "c", "", "", "", ""}});
    CHECK_THAT(text, Contains("got none: on rank 1: a, b; on rank 2: c;"));
    CHECK_THAT(text, !Contains("rank 0"));
  }
  SECTION("also where other ranks are not known") {
    CHECK_THAT(pass_error({{}, {5, 1, "a", "", "", "", ""}, {}}),
               Contains("got none: on rank 1: a;"));
  }
  SECTION("then what is frozen") {
    CHECK_THAT(pass_error({{5, 0, "", "x, y", "", "", ""},
                           {5, 1, "", "", "", "", ""}}),
               Contains("frozen: rank 0: x, y, rank 1: none."));
  }
  SECTION("then steps") {
    CHECK_THAT(
        pass_error({{5, 0, "", "", "", "", ""}, {5, 1, "", "", "", "", ""}}),
        Contains("rank 0: 4 times between 5 backward passes, rank 1: 3 times"));
  }
}

TEST_CASE("passes without a step are counted", "[verdict]") {
  const auto parameter = GENERATE(
      torch::ones({1}),
      torch::ones({2, 3}, at::kBFloat16),
      torch::ones({5}, at::kComplexDouble),
      torch::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
  const size_t count = GENERATE(1, 2, 16, 17, 100);
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; i < count; ++i) {
    parameters.push_back(parameter.clone().requires_grad_());
  }
  UpdateWatch watch(parameters);
  const auto step = [&] {
    for (auto& p : parameters) {
      p.data().add_(1);  // as LibTorch's optimizers do
    }
  };
  CHECK(watch.begin_pass() == 0);
  CHECK(watch.begin_pass() == 1);
  step();
  CHECK(watch.begin_pass() == 1);
  step();
  CHECK(watch.begin_pass() == 1);
  CHECK(watch.begin_pass() == 2);
  CHECK(watch.begin_pass() == 3);
}

TEST_CASE("parameters without elements tell nothing", "[verdict]") {
  UpdateWatch watch({torch::ones({0}).requires_grad_()});
  CHECK(!watch.begin_pass());
  CHECK(!watch.begin_pass());
}

}  // namespace verdict_test
}  // namespace ddp::detail
