#include "ddp/reduce/detail/pass_agreement.h"

#include <torch/types.h>

#include "ddp/reduce/detail/pass_report.h"
#include "ddp/reduce/detail/status_sums.h"
#include "ddp/reduce/detail/step_detector.h"
#include "test/support/catch.h"

namespace ddp::detail {
namespace pass_agreement_test {

using Catch::Contains;

struct Says {
  Stamp stamp;
  bool failed = false;
};

/// Returns whether the ranks agree. Every rank has to read the same result.
bool agree(const std::vector<Says>& ranks, at::ScalarType type) {
  auto sums = torch::zeros({StatusSums::kNumel}, type);
  std::deque<StatusSums> statuses;
  for (const auto& says : ranks) {
    const auto elements = torch::empty({StatusSums::kNumel}, type);
    statuses.emplace_back(elements.device());
    statuses.back().write(elements, says.stamp, says.failed);
    sums += elements;
  }
  std::vector<bool> agree;
  for (auto& status : statuses) {
    status.read(sums);
    agree.push_back(status.all_agree());
  }
  REQUIRE(std::equal(agree.begin() + 1, agree.end(), agree.begin()));
  return agree[0];
}

TEST_CASE("ranks that say the same agree", "[agreement]") {
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
          "[agreement]") {
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

TEST_CASE("a rank that does not know bit 0 agrees with all in it",
          "[agreement]") {
  const Says not_known{{7, false}, false};
  CHECK(agree({not_known, not_known}, at::kFloat));
  for (const uint16_t stamp : {6, 7}) {
    CHECK(agree({not_known, {{stamp}, false}, not_known}, at::kFloat));
    const Says other{{static_cast<uint16_t>(stamp ^ 0x100)}, false};
    CHECK_FALSE(agree({not_known, other}, at::kFloat));
  }
  CHECK_FALSE(agree({{{7}, false}, not_known, {{6}, false}}, at::kFloat));
}

TEST_CASE("passes of different reducers are crossed", "[agreement]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kComplexFloat);
  const bool is_shadow = GENERATE(false, true);
  for (uint8_t other = 0; other < 16; ++other) {
    auto sums = torch::zeros({StatusSums::kNumel}, type);
    StatusSums status(sums.device());
    for (const uint8_t reducer : {uint8_t{5}, other, uint8_t{5}}) {
      const auto elements = torch::empty({StatusSums::kNumel}, type);
      status.write(elements,
                   is_shadow ? Stamp{0, false, false, reducer}
                             : Stamp{7, true, true, reducer},
                   false);
      sums += elements;
    }
    status.read(sums);
    CHECK(status.all_agree() == (other == 5));
    CHECK(status.met_other_reducer() == (other != 5));
  }
}

TEST_CASE("a thousand ranks in bfloat16, whose sums stand still at 256",
          "[agreement]") {
  std::vector<Says> ranks(1000, {{7}, false});
  CHECK(agree(ranks, at::kBFloat16));
  ranks[999].stamp.bits = 6;
  CHECK_FALSE(agree(ranks, at::kBFloat16));
}

TEST_CASE("a disagreement is kept until it is forgotten", "[agreement]") {
  const auto elements = torch::zeros({StatusSums::kNumel});
  StatusSums status(elements.device());
  status.write(elements, {3}, true);
  status.read(elements);
  status.write(elements, {3}, false);
  status.read(elements);
  CHECK_FALSE(status.all_agree());
  CHECK(status.wait(std::chrono::milliseconds(0)));
  CHECK_FALSE(status.is_settled());
  status.forget_disagreement();
  CHECK(status.all_agree());
}

TEST_CASE("ranks stop in the first pass in which all have said it",
          "[agreement]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kComplexFloat);
  const size_t size = GENERATE(1, 2, 5, 300);
  std::vector<std::shared_ptr<StopVote>> votes;
  std::deque<StatusSums> statuses;
  const auto elements = torch::empty({StatusSums::kNumel}, type);
  for (size_t rank = 0; rank < size; ++rank) {
    votes.push_back(std::make_shared<StopVote>());
    statuses.emplace_back(elements.device(), votes.back());
  }
  const auto pass = [&] {
    auto sums = torch::zeros({StatusSums::kNumel}, type);
    for (auto& status : statuses) {
      status.write(elements, {7}, false);
      sums += elements;
    }
    for (auto& status : statuses) {
      status.read(sums);
      REQUIRE(status.all_agree());
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

TEST_CASE("stamps of passes", "[agreement]") {
  PassStatus status;
  status.number = 12;
  status.without_step = 0;
  const auto stamp = status.stamp();
  CHECK(stamp.knows_bit_0);
  SECTION("do not tell passes apart, and nothing of what is missing") {
    status.number = 13;
    status.missing = {1, 2};
    CHECK(status.stamp().bits == stamp.bits);
  }
  SECTION("tell a step more or less, in bit 0") {
    status.without_step = 1;
    CHECK(status.stamp().bits == (stamp.bits ^ 1));
    CHECK(status.stamp().knows_bit_0);
  }
  SECTION("tell the group's reducers apart, also in a shadow") {
    status.reducer = 18;
    CHECK(status.stamp().bits == stamp.bits);
    CHECK(status.stamp().reducer == 2);
    status.is_shadow = true;
    CHECK(status.stamp().reducer == 2);
  }
  SECTION("say where steps are not known") {
    status.without_step.reset();
    CHECK(!status.stamp().knows_bit_0);
  }
  SECTION("tell what is frozen") {
    std::set<uint16_t> stamps{stamp.bits};
    for (size_t i = 0; i < 100; ++i) {
      status.frozen = {i};
      stamps.insert(status.stamp().bits);
      status.frozen = {i, i + 1};
      stamps.insert(status.stamp().bits);
    }
    CHECK(stamps.size() >= 200);  // one in 32,768 collides by chance
  }
}

TEST_CASE("reports survive the way to another rank", "[agreement]") {
  const auto report =
      GENERATE(PassReport{},
               PassReport{3, 1, "", "b", "", "", ""},
               PassReport{9, 0, "a.x, b", "", "bad luck, twice", "", "c, d"});
  const auto back = parse_report(to_text(report));
  CHECK(back.number == report.number);
  CHECK(back.without_step == report.without_step);
  CHECK(back.missing == report.missing);
  CHECK(back.frozen == report.frozen);
  CHECK(back.failure == report.failure);
  CHECK(back.late == report.late);
}

TEST_CASE("what went wrong in a pass, in words", "[agreement]") {
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

TEST_CASE("passes without a step are counted", "[agreement]") {
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
  StepDetector detector(parameters);
  const auto step = [&] {
    for (auto& p : parameters) {
      p.data().add_(1);  // as LibTorch's optimizers do
    }
  };
  CHECK(detector.count_passes_without_step() == 0);
  CHECK(detector.count_passes_without_step() == 1);
  step();
  CHECK(detector.count_passes_without_step() == 1);
  step();
  CHECK(detector.count_passes_without_step() == 1);
  CHECK(detector.count_passes_without_step() == 2);
  CHECK(detector.count_passes_without_step() == 3);
}

TEST_CASE("parameters without elements tell nothing", "[agreement]") {
  StepDetector detector({torch::ones({0}).requires_grad_()});
  CHECK(!detector.count_passes_without_step());
  CHECK(!detector.count_passes_without_step());
}

}  // namespace pass_agreement_test
}  // namespace ddp::detail
