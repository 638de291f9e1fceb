#include <cmath>
#include <map>
#include <stdexcept>

#include "test/fake_gpu/engine/scheduler.h"
#include "test/fake_gpu/kernels/template_name.h"
#include "test/fake_gpu/settings.h"
#include "test/fake_gpu/tests/device_buffer.h"
#include "test/fake_gpu/tests/register_function.h"
#include "test/support/catch.h"

namespace fake_gpu {
namespace units_test {

Settings parse(const std::map<std::string, std::string>& variables) {
  return parse_settings([&](const char* name) -> const char* {
    const auto place = variables.find(name);
    return place == variables.end() ? nullptr : place->second.c_str();
  });
}

TEST_CASE("settings come from the environment") {
  const auto settings = parse({{"FAKE_GPU_MODE", "lazy"},
                               {"FAKE_GPU_SEED", "7"},
                               {"FAKE_GPU_DEVICES", "4"},
                               {"CUDA_VISIBLE_DEVICES", "0,2,3"},
                               {"FAKE_GPU_MEMORY_MB", "3"},
                               {"FAKE_GPU_LOSE_WAIT", "5"},
                               {"FAKE_GPU_FAULT", "stall:1:30"}});
  CHECK(settings.mode == Mode::lazy);
  CHECK(settings.seed == 7);
  CHECK(settings.devices == 3);
  CHECK(settings.memory_bytes == size_t{3} << 20);
  CHECK(settings.lose_wait == 5);
  CHECK(settings.fault.kind == Fault::Kind::stall);
  CHECK(settings.fault.rank == 1);
  CHECK(settings.fault.call == 30);
  CHECK(parse({{"CUDA_VISIBLE_DEVICES", ""}}).devices == 0);
  CHECK(parse({{"FAKE_GPU_FAULT", "never_join:2"}}).fault.rank == 2);
}

TEST_CASE("a wrong setting is refused by its name") {
  const auto [name, value] =
      GENERATE(table<std::string, std::string>({{"FAKE_GPU_MODE", "fast"},
                                                {"FAKE_GPU_SEED", "1x"},
                                                {"FAKE_GPU_DEVICES", "17"},
                                                {"FAKE_GPU_FAULT", "die:1"},
                                                {"FAKE_GPU_FAULT", "sleep:1:1"},
                                                {"FAKE_GPU_TRACE", ""}}));
  CHECK_THROWS_WITH(parse({{name, value}}),
                    Catch::Contains("Expected " + name + " to be"));
}

TEST_CASE("template arguments are read from a name") {
  using Names = std::vector<std::string>;
  CHECK(template_arguments("f<a<int>, b>(c)", "f") == Names{"a<int>", "b"});
  CHECK(template_arguments("void n::g<4, (t)1, h<x, y> >(int)", "n::g") ==
        Names{"4", "(t)1", "h<x, y>"});
  CHECK(template_arguments("g<k(int, float)#1>", "g") ==
        Names{"k(int, float)#1"});
  CHECK(template_arguments("f(int)", "f").empty());
}

/// Streams with one operation each, without demands.
struct Streams {
  explicit Streams(size_t count) : owned(count) {
    for (auto& stream : owned) {
      stream.queue.push_back({"work", nullptr, {}, {}});
      stream.queued = 1;
      all.push_back(&stream);
    }
  }
  void wait(size_t waiter, size_t other) {
    owned[waiter].queue.front().after = owned[other].last();
  }

  std::vector<Stream> owned;
  std::vector<Stream*> all;
  Random random{1};
};

TEST_CASE("lazy runs nothing that nobody waits for") {
  Streams streams(3);
  const Choice lazy{Mode::lazy, Clock::now(), false};
  CHECK(choose(streams.all, lazy, streams.random) == nullptr);
  streams.owned[1].demanded = 1;
  for (int i = 0; i < 20; ++i) {
    CHECK(choose(streams.all, lazy, streams.random) == streams.all[1]);
  }
  Choice overdue = lazy;
  overdue.overdue = true;
  streams.owned[1].demanded = 0;
  CHECK(choose(streams.all, overdue, streams.random) != nullptr);
}

TEST_CASE("what a demanded stream waits for runs first") {
  Streams streams(4);
  streams.wait(2, 1);
  streams.wait(1, 0);
  streams.owned[2].demanded = 1;
  CHECK(needed_streams(streams.all) ==
        std::set<Stream*>{streams.all[0], streams.all[1], streams.all[2]});
  const Choice lazy{Mode::lazy, Clock::now(), false};
  CHECK(choose(streams.all, lazy, streams.random) == streams.all[0]);
}

TEST_CASE("the highest priority runs, and is waited for with patience") {
  Streams streams(3);
  streams.owned[0].demanded = 1;
  streams.owned[1].priority = 5;
  streams.owned[2].priority = 9;
  const Choice choice{Mode::priority, Clock::now(), false};
  CHECK(choose(streams.all, choice, streams.random) == streams.all[2]);

  streams.owned[2].priority = 9;
  streams.owned[2].resting = choice.now + std::chrono::seconds(1);
  streams.owned[2].refusals = 1;
  CHECK(choose(streams.all, choice, streams.random) == nullptr);
  streams.owned[2].refusals = 1000;
  CHECK(choose(streams.all, choice, streams.random) == streams.all[1]);
}

TEST_CASE("eager runs what nobody asked for") {
  Streams streams(3);
  const Choice eager{Mode::eager, Clock::now(), false};
  std::set<Stream*> chosen;
  for (int i = 0; i < 100; ++i) {
    chosen.insert(choose(streams.all, eager, streams.random));
  }
  CHECK(chosen.size() == 3);
}

TEST_CASE("a kernel runs by its name and arguments") {
  static const char kernel = 0;
  __cudaRegisterFunction(
      nullptr,
      &kernel,
      nullptr,
      "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE"
      "St5arrayIPcLm1EEEEviT0_T1_",
      -1,
      nullptr,
      nullptr,
      nullptr,
      nullptr,
      nullptr);
  test::DeviceBuffer buffer(4 * sizeof(float));
  int count = 3;
  float value = 2.5F;
  char* data = buffer.data<char>();
  void* arguments[] = {&count, &value, &data};
  reset_counts();
  CHECK(cudaLaunchKernel(&kernel, 1, 1, arguments, 0, nullptr) == cudaSuccess);
  value = 0;  // must have no effect: the launch has read the arguments
  const auto values = buffer.read<float>();
  CHECK(counts().kernels == 1);
  CHECK(values.at(0) == 2.5F);
  CHECK(values.at(2) == 2.5F);
  CHECK(std::isnan(values.at(3)));
}

}  // namespace units_test
}  // namespace fake_gpu
