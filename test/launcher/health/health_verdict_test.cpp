#include "launcher/hosts/health_verdict.h"

#include <unistd.h>

#include <csignal>

#include "launcher/base/overloaded.h"
#include "launcher/hosts/join_steps.h"
#include "test/launcher/bound_loop.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using namespace launcher;
using namespace std::chrono_literals;

namespace {

/// A pipe that processes hold open, to detect the end of the last one.
class ProcessGroupLifetime {
 public:
  /// Returns a shell command after which the shell and its children hold the
  /// pipe.
  std::string hold() const {
    return "exec 9> /proc/" + std::to_string(::getpid()) + "/fd/" +
           std::to_string(pipe_.write.get()) + "; echo held >&9";
  }
  void await_hold(EventLoop& loop) { await(loop, is_held_); }
  void await_end(EventLoop& loop) {
    pipe_.write.reset();
    await(loop, is_over_);
  }

 private:
  void await(EventLoop& loop, const bool& has_come) {
    const auto watch = loop.watch(pipe_.read.get(), EPOLLIN, [this] {
      char text[16];
      const ssize_t size = ::read(pipe_.read.get(), text, sizeof(text));
      is_held_ = is_held_ || size > 0;
      is_over_ = size == 0;
    });
    while (!has_come) {
      loop.run_once();
    }
    loop.unwatch(watch);
  }

  Pipe pipe_ = make_pipe();
  bool is_held_ = false;
  bool is_over_ = false;
};

/// A host with a health check, and its notes and outcome.
struct CheckedHost {
  EventLoop loop;
  std::string story;
  Environment environment{{"PATH", "/usr/bin:/bin"}};
  CallerSettings settings;
  JoinSteps steps;

  explicit CheckedHost(HealthCheck check)
      : steps(loop,
              {.health_check = std::move(check), .host = "node7"},
              environment,
              settings,
              [this](const RendezvousAnswer& answer) {
                std::visit(
                    Overloaded{[this](const RendezvousNote& note) {
                                 story += note.text + "; ";
                               },
                               [this](const RendezvousLost& lost) {
                                 story += "lost: " + lost.text;
                               },
                               [this](const auto&) { story += "other; "; }},
                    answer);
              }) {
    test::bound(loop);
  }
  void run() {
    steps.run([this] { story += "join; "; });
  }
  std::string join() {
    story.clear();
    run();
    while (story.empty()) {
      loop.run_once();
    }
    return story;
  }
};

}  // namespace

TEST_CASE("a fit host joins, and is looked at again before the next world") {
  const ddp::test::TemporaryFolder folder;
  const std::string file = folder.path() + "/runs";
  CheckedHost host({.command = "echo run >> " + file});
  CHECK(host.join() == "join; ");
  CHECK(host.join() == "join; ");
  CHECK(ddp::test::read_file(file) == "run\nrun\n");
}

TEST_CASE("an unfit host does not join, and says why") {
  CheckedHost host({.command = "echo bad fan; echo hot >&2; exit 3"});
  CHECK(host.join() ==
        "--health-check: bad fan; --health-check: hot; lost: host node7 "
        "does not take part: its --health-check failed (exit code 3)");
}

TEST_CASE("a check has the caller's settings, not ddprun's") {
  std::signal(SIGPIPE, SIG_DFL);
  CheckedHost host({.command = "kill -PIPE $$; echo survived"});
  CHECK(host.join() ==
        "lost: host node7 does not take part: its --health-check failed "
        "(SIGPIPE)");
}

TEST_CASE("a check that does not end is ended, with what it has started") {
  ProcessGroupLifetime life;
  CheckedHost host(
      {.command = "echo begun; " + life.hold() + "; sleep 1000 & sleep 1000",
       .limit = 300ms});
  REQUIRE(host.join() ==
          "--health-check: begun; lost: host node7 does not take part: "
          "its --health-check did not end in 300 ms (--health-check-timeout)");
  life.await_end(host.loop);
}

TEST_CASE("a check is over when it has ended, whatever it leaves behind") {
  CheckedHost host({.command = "sleep 1000 & echo done"});
  CHECK(host.join() == "join; ");
}

TEST_CASE("who leaves during a check hears no more of it, and it ends") {
  ProcessGroupLifetime life;
  CheckedHost host({.command = life.hold() + "; exec sleep 1000"});
  host.run();
  life.await_hold(host.loop);
  host.steps.cancel();
  life.await_end(host.loop);
  CHECK(host.story.empty());
}

TEST_CASE("how a command ended goes from process to process") {
  const auto same = [](const CommandEnd& end) {
    return decode_command_end(encode(end)).value();
  };
  CHECK(same({ExitStatus{.code = 7}, "a\nb"}).status->code == 7);
  CHECK(same({ExitStatus{.code = 7}, "a\nb"}).output == "a\nb");
  CHECK(same({ExitStatus{.code = 0, .signal = 11}, ""}).status->signal == 11);
  CHECK(!same({{}, "x"}).status);
  CHECK(!decode_command_end(""));
  CHECK(judge_health({}, {}, "node7").failure ==
        "host node7 does not take part: its --health-check could not be run; "
        "check ulimit -a");
}
