#include "launcher/workers/progress/hang_judge.h"

#include "ddp/base/job_files/progress_file.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using namespace launcher;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;
using ddp::test::write_file;
using namespace std::chrono_literals;
using Time = HangJudge::Time;

namespace {

/// Workers with a limit of 10 s, checked every half second.
class HangJudgeFixture {
 public:
  explicit HangJudgeFixture(size_t workers, bool has_other_hosts = false)
      : judge_(10s, workers, has_other_hosts, now_), readings_(workers) {
    for (size_t worker = 0; worker < workers; ++worker) {
      judge_.expect(worker, {});
    }
  }

  void report(size_t worker, const std::string& text) {
    readings_[worker].text = text;
    ++readings_[worker].stamp;
  }
  /// Sends two reports, after which the limit is that of --hang-timeout.
  void report_twice(size_t worker, const std::string& text) {
    report(worker, "start");
    look();
    report(worker, text);
    look();
  }
  /// Simulates a store into mapped memory, which does not change the file's
  /// time.
  void store(size_t worker, const std::string& text) {
    readings_[worker].text = text;
  }
  /// Simulates a file that had content before the worker started.
  void find(size_t worker, const std::string& text) {
    readings_[worker] = {.text = text, .stamp = 7};
    judge_.expect(worker, readings_[worker]);
  }
  void stop(size_t worker) { readings_[worker].is_stopped = true; }
  void end(size_t worker) { judge_.forget(worker, now_); }

  /// Returns the workers that hang now.
  std::vector<size_t> look() {
    std::vector<size_t> hung;
    for (size_t worker = 0; worker < readings_.size(); ++worker) {
      if (judge_.is_watched(worker)) {
        judge_.record(worker, readings_[worker], now_);
      }
    }
    for (const auto& verdict : judge_.judge(now_)) {
      hung.push_back(verdict.worker);
    }
    return hung;
  }

  /// Advances time until a worker hangs. Returns no worker if the time is over
  /// before.
  std::vector<size_t> wait(std::chrono::seconds time) {
    const Time end = now_ + time;
    while (now_ < end) {
      now_ += judge_.interval();
      const auto hung = look();
      if (!hung.empty()) {
        return hung;
      }
    }
    return {};
  }

  void restart() { judge_.restart(now_); }
  /// Simulates a suspended ddprun.
  void suspend(std::chrono::seconds time) { now_ += time; }

  double seconds() const {
    return std::chrono::duration<double>(now_.time_since_epoch()).count();
  }
  HangJudge& judge() { return judge_; }

 private:
  Time now_{};
  HangJudge judge_;
  std::vector<ProgressReading> readings_;
};

using Ranks = std::vector<size_t>;

}  // namespace

TEST_CASE("hangs: who has not reported yet is not judged") {
  HangJudgeFixture watch(2);
  CHECK(watch.wait(10'000s) == Ranks{});
}

TEST_CASE("hangs: five times the limit for the second report, then once") {
  HangJudgeFixture watch(1);
  watch.report(0, "start");
  CHECK(watch.wait(50s) == Ranks{});
  watch.report(0, "step 1");
  CHECK(watch.wait(10s) == Ranks{});
  watch.report(0, "step 2");
  const double before = watch.seconds();
  CHECK(watch.wait(100s) == Ranks{0});
  CHECK(watch.seconds() - before <= 11.5);
}

TEST_CASE("hangs: a start that never ends") {
  HangJudgeFixture watch(1);
  watch.report(0, "start");
  CHECK(watch.wait(49s) == Ranks{});
  CHECK(watch.wait(3s) == Ranks{0});
}

TEST_CASE("hangs: a change of the time alone is progress") {
  HangJudgeFixture watch(1);
  watch.report_twice(0, "step");
  for (int step = 0; step < 10; ++step) {
    CHECK(watch.wait(9s) == Ranks{});
    watch.report(0, "step");
  }
}

TEST_CASE("hangs: so is a change of the text alone") {
  HangJudgeFixture watch(1);
  watch.report_twice(0, "step 0");
  for (int step = 1; step < 10; ++step) {
    CHECK(watch.wait(9s) == Ranks{});
    watch.store(0, "step " + std::to_string(step));
  }
}

TEST_CASE("hangs: what was there before is no report") {
  HangJudgeFixture watch(1);
  watch.find(0, "of the last attempt");
  CHECK(watch.wait(1'000s) == Ranks{});
}

TEST_CASE("hangs: who has ended without a report is not waited for") {
  HangJudgeFixture watch(2);
  watch.report_twice(0, "collectives=3 waits=1");
  watch.end(1);
  CHECK(watch.wait(20s) == Ranks{0});
}

TEST_CASE("hangs: a look that comes late within a second is no absence") {
  Time now{};
  HangJudge judge(100ms, 1, false, now);
  judge.expect(0, {});
  for (const char* text : {"start", "step 1"}) {
    judge.record(0, {.text = text}, now);
    CHECK(judge.judge(now).empty());
  }
  now += 900ms;
  CHECK(judge.judge(now).size() == 1);
}

TEST_CASE("hangs: programs that count no collectives are judged each alone") {
  HangJudgeFixture watch(3);
  for (const size_t worker : {0, 1, 2}) {
    watch.report_twice(worker, "step 1");
  }
  CHECK(watch.wait(6s) == Ranks{});
  watch.report(0, "step 2");
  watch.report(2, "step 2");
  CHECK(watch.wait(6s) == Ranks{1});
}

TEST_CASE("hangs: who waits in a collective is not to blame") {
  HangJudgeFixture watch(3);
  watch.report_twice(0, "collectives=5 waits=1");
  watch.report_twice(1, "collectives=4 waits=0");
  watch.report_twice(2, "collectives=5 waits=1");
  CHECK(watch.wait(20s) == Ranks{1});
}

TEST_CASE("hangs: who is ahead may wait, though it does not say so") {
  // On a GPU the host waits at the first place where it needs a result.
  HangJudgeFixture watch(3);
  watch.report_twice(0, "collectives=9 waits=0");
  watch.report_twice(1, "collectives=7 waits=0");
  watch.report_twice(2, "collectives=8 waits=0");
  CHECK(watch.wait(20s) == Ranks{1});
}

TEST_CASE("hangs: all wait, so it is who has begun the fewest collectives") {
  HangJudgeFixture watch(3);
  watch.report_twice(0, "collectives=9 waits=1");
  watch.report_twice(1, "collectives=7 waits=1");
  watch.report_twice(2, "collectives=8 waits=1");
  CHECK(watch.wait(20s) == Ranks{1});
}

TEST_CASE("hangs: all wait in the same collective") {
  HangJudgeFixture watch(2);
  watch.report_twice(0, "collectives=9 waits=1");
  watch.report_twice(1, "collectives=9 waits=1");
  CHECK(watch.wait(20s) == Ranks{0, 1});
}

TEST_CASE("hangs: all wait for one that has never reported") {
  HangJudgeFixture watch(3);
  watch.report_twice(0, "collectives=1 waits=1");
  watch.report_twice(2, "collectives=1 waits=1");
  CHECK(watch.wait(20s) == Ranks{1});
}

TEST_CASE("hangs: one that is stopped, whatever it says") {
  HangJudgeFixture watch(3);
  for (const size_t worker : {0, 1, 2}) {
    watch.report_twice(worker, "collectives=9 waits=1");
  }
  watch.stop(2);
  CHECK(watch.wait(20s) == Ranks{2});
}

TEST_CASE("hangs: one that is stopped and continued in time does not") {
  HangJudgeFixture watch(1);
  watch.report_twice(0, "step 1");
  watch.stop(0);
  CHECK(watch.wait(9s) == Ranks{});
  watch.report(0, "step 2");
  CHECK(watch.wait(9s) == Ranks{});
}

TEST_CASE("hangs: a long evaluation of one rank, for which the others wait") {
  HangJudgeFixture watch(3);
  watch.report_twice(0, "evaluating limit=600 collectives=4");
  watch.report_twice(1, "collectives=5 waits=1");
  watch.report_twice(2, "collectives=5 waits=1");
  CHECK(watch.wait(590s) == Ranks{});
  SECTION("it ends") {
    watch.report(0, "collectives=5 waits=1");
    CHECK(watch.wait(5s) == Ranks{});
    for (const size_t worker : {0, 1, 2}) {
      watch.report(worker, "collectives=6 waits=1");
    }
    CHECK(watch.wait(9s) == Ranks{});
  }
  SECTION("it does not") {
    CHECK(watch.wait(15s) == Ranks{0});
  }
}

TEST_CASE("hangs: a save of the library's, for which the others wait") {
  const TemporaryFolder folder;
  const std::string path = folder / "progress";
  write_file(path, "");
  ddp::detail::ProgressFile saver(path);
  HangJudgeFixture watch(2);
  const auto reports = [&](const std::string& of_other) {
    watch.report(1, of_other);
    watch.store(0, read_file(path));
    return watch.look();
  };
  CHECK(reports("start") == Ranks{});
  saver.note_pass();
  CHECK(reports("collectives=1 waits=1") == Ranks{});
  // As a QuietGuard does.
  saver.set_limit(60s);
  saver.set_text("saving");
  CHECK(reports("collectives=1 waits=1") == Ranks{});
  CHECK(watch.wait(59s) == Ranks{});
  SECTION("it stays within its time, and what follows has the usual one") {
    saver.set_limit(0s);
    saver.note_collective();
    CHECK(reports("collectives=1 waits=1") == Ranks{});
    CHECK(watch.wait(10s) == Ranks{});
    CHECK(watch.wait(2s) == Ranks{0});
  }
  SECTION("it does not end: it hangs, not who waits") {
    CHECK(watch.wait(3s) == Ranks{0});
    CHECK(watch.judge().progress_of(0).text == "saving");
    CHECK(watch.judge().progress_of(0).limit->time == 60s);
  }
}

TEST_CASE("hangs: who waited for one that has ended has its limit again") {
  HangJudgeFixture watch(2);
  watch.report_twice(0, "collectives=5 waits=1");
  watch.report_twice(1, "evaluating limit=600 collectives=4");
  CHECK(watch.wait(60s) == Ranks{});
  watch.end(1);
  CHECK(watch.wait(9s) == Ranks{});
  SECTION("it goes on") {
    watch.report(0, "step 2");
    CHECK(watch.wait(9s) == Ranks{});
  }
  SECTION("it does not") {
    CHECK(watch.wait(3s) == Ranks{0});
  }
}

TEST_CASE("hangs: a relative limit, and one below the timeout") {
  HangJudgeFixture watch(1);
  watch.report_twice(0, "step 1 limit=3x");
  CHECK(watch.wait(30s) == Ranks{});
  watch.report(0, "step 2 limit=1");
  CHECK(watch.wait(10s) == Ranks{});
  CHECK(watch.wait(2s) == Ranks{0});
}

TEST_CASE(
    "hangs: those whom ranks of other hosts may keep get twice the time") {
  HangJudgeFixture watch(2, /*has_other_hosts=*/true);
  watch.report_twice(0, "collectives=9 waits=1");
  watch.report_twice(1, "collectives=9 waits=1");
  CHECK(watch.wait(19s) == Ranks{});
  CHECK(watch.wait(3s) == Ranks{0, 1});
}

TEST_CASE("hangs: one that waits for nobody, with other hosts") {
  HangJudgeFixture watch(2, /*has_other_hosts=*/true);
  watch.report_twice(0, "collectives=9 waits=1");
  watch.report_twice(1, "collectives=8 waits=0");
  CHECK(watch.wait(12s) == Ranks{1});
}

TEST_CASE("hangs: who has ended is neither judged nor waited for") {
  HangJudgeFixture watch(2);
  watch.report_twice(0, "collectives=1");
  watch.report_twice(1, "collectives=9 waits=1");
  watch.end(0);
  CHECK(watch.wait(20s) == Ranks{1});
  watch.end(1);
  CHECK(watch.wait(100s) == Ranks{});
}

TEST_CASE("hangs: time in which ddprun was stopped itself does not count") {
  HangJudgeFixture watch(1);
  watch.report_twice(0, "step 1");
  CHECK(watch.wait(5s) == Ranks{});
  watch.suspend(3600s);
  CHECK(watch.look() == Ranks{});
  CHECK(watch.wait(4s) == Ranks{});
  CHECK(watch.wait(3s) == Ranks{0});
}

TEST_CASE("hangs: workers that were stopped on purpose have their whole time") {
  HangJudgeFixture watch(1);
  watch.report_twice(0, "step 1");
  CHECK(watch.wait(9s) == Ranks{});
  watch.suspend(4s);
  watch.restart();
  CHECK(watch.wait(10s) == Ranks{});
  CHECK(watch.wait(2s) == Ranks{0});
}

TEST_CASE("hangs: a host so busy that ddprun looks seldom") {
  HangJudgeFixture watch(1);
  watch.report_twice(0, "step 1");
  for (int look = 0; look < 2; ++look) {
    watch.suspend(4s);
    CHECK(watch.look() == Ranks{});
  }
  watch.suspend(4s);
  CHECK(watch.look() == Ranks{0});
}

TEST_CASE("hangs: looks are a small part of the limit") {
  const auto interval = [](HangJudge::Milliseconds limit) {
    return HangJudge(limit, 1, false, {}).interval();
  };
  CHECK(interval(10s) == 500ms);
  CHECK(interval(1ms) == 50ms);
  CHECK(interval(24h) == 5s);
}
