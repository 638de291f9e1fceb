#include "launcher/progress/stack.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "ddp/detail/job_files/stack_offer.h"
#include "ddp/detail/job_files/stack_text.h"
#include "launcher/progress/own_stack.h"
#include "launcher/progress/process_state.h"
#include "launcher/progress/worker_file.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using namespace launcher;
using ddp::detail::is_whole_stack;
using ddp::detail::offer_stack;
using ddp::detail::offered_signal;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;
using ddp::test::write_file;
using namespace std::chrono_literals;

TEST_CASE("stacks: the offer is a first line that is a signal's number") {
  CHECK(offered_signal("12\n") == 12);
  CHECK(offered_signal("64\nFile \"a.py\"\n") == 64);
  CHECK(offered_signal("9\n3\n") == 9);
  const char* none = GENERATE("",
                              "12",
                              "\n12\n",
                              "0\n",
                              "-1\n",
                              "65\n",
                              "12 \n",
                              "USR2\n",
                              "99999999999999999999\n");
  CHECK(!offered_signal(none));
}

TEST_CASE("stacks: whole ones end with a line of their own") {
  CHECK(is_whole_stack("end\n"));
  CHECK(is_whole_stack("f()\nend\n"));
  const char* open =
      GENERATE("", "end", "f()\nend", "the end\n", "end\nf()\n", "end\n\n");
  CHECK(!is_whole_stack(open));
}

TEST_CASE("stacks: how long is waited for more") {
  CHECK(!is_answered("", 1'900ms, 1'900ms));
  CHECK(is_answered("", 2'100ms, 2'100ms));
  CHECK(!is_answered("f()\n", 2'900ms, 400ms));
  CHECK(is_answered("f()\n", 600ms, 600ms));
  CHECK(is_answered("f()\n", 3'100ms, 1ms));
  CHECK(is_answered("f()\nend\n", 1ms, 0ms));
}

TEST_CASE("stacks: a worker's own as people read them") {
  CHECK(shown_stack("") == "");
  CHECK(shown_stack("end\n") == "");
  CHECK(shown_stack("/usr/bin/train(_Z4stepi+0x1f)[0x55d0]\n"
                    "/lib/libc.so.6(__poll+0x2)[0x7f00]\n"
                    "./train(+0x12ab)[0x55d1]\n"
                    "[0x55d2]\n"
                    "end\n") ==
        "step(int)+0x1f in train\n"
        "__poll+0x2 in libc.so.6\n"
        "+0x12ab in train\n"
        "[0x55d2]");
  CHECK(shown_stack("Thread 0x7f (most recent call first):\n"
                    "  File \"a(1).py\", line 3 in f\n\n"
                    "  File \"b.py\", line 4 in <module>") ==
        "Thread 0x7f (most recent call first):\n"
        "  File \"a(1).py\", line 3 in f\n\n"
        "  File \"b.py\", line 4 in <module>");
  CHECK(shown_stack(std::string("a\tb\x1b[2J\0\xff", 9)) == "a b?[2J??");
  CHECK(shown_stack(")[0x") == ")[0x");
  CHECK(shown_stack("+0x1)[0x") == "+0x1)[0x");
  CHECK(shown_stack(std::string(1 << 20, 'x')).size() < 10'000);
}

TEST_CASE("who is asked where a process is, and in which order") {
  using enum StackSource;
  using Sources = std::vector<StackSource>;
  CHECK(stack_sources(false, false) == Sources{gdb});
  CHECK(stack_sources(false, true) == Sources{gdb, own});
  CHECK(stack_sources(true, false) == Sources{py_spy, gdb});
  CHECK(stack_sources(true, true) == Sources{py_spy, own, gdb});
}

TEST_CASE("signals that a process catches in the text of its status") {
  const std::string text =
      "Name:\tSigCgt:\nSigIgn:\tffffffffffffffff\n"
      "SigCgt:\t8000000000000800\nSigBlk:\tffffffffffffffff\n";
  for (int number = 1; number <= 64; ++number) {
    CAPTURE(number);
    CHECK(names_signal(text, "SigCgt:", number) ==
          (number == 12 || number == 64));
  }
  CHECK(!names_signal("", "SigCgt:", 12));
}

TEST_CASE("a signal is sent to nobody who does not catch it") {
  const TemporaryFolder folder;
  const std::string file = folder / "stack";
  write_file(file, std::to_string(SIGUSR2) + "\n");
  CHECK(!stack_signal(::getpid(), file));
  struct sigaction before {};
  struct sigaction action {};
  action.sa_handler = [](int) {};
  REQUIRE(::sigaction(SIGUSR2, &action, &before) == 0);
  CHECK(stack_signal(::getpid(), file) == SIGUSR2);
  CHECK(!stack_signal(::getpid(), folder / "other"));
  REQUIRE(::symlink(file.c_str(), (folder / "link").c_str()) == 0);
  CHECK(!stack_signal(::getpid(), folder / "link"));
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  CHECK(!stack_signal(::getpid(), folder / "fifo"));
  CHECK(!open_worker_file(folder / "fifo"));
  REQUIRE(::sigaction(SIGUSR2, &before, nullptr) == 0);
}

TEST_CASE("a process of ours says where it is, each time it is asked") {
  const TemporaryFolder folder;
  const std::string file = folder / "stack";
  CHECK(!offer_stack(file));
  write_file(folder / "target", "mine");
  REQUIRE(::symlink((folder / "target").c_str(), (folder / "link").c_str()) ==
          0);
  CHECK(!offer_stack(folder / "link"));
  CHECK(read_file(folder / "target") == "mine");
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  const Fd reader(
      ::open((folder / "fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(reader);  // or a FIFO cannot be opened at all
  CHECK(!offer_stack(folder / "fifo"));

  // Nobody's handler is replaced, and no signal is taken that would not come.
  struct sigaction before {};
  struct sigaction caught {};
  caught.sa_handler = [](int) {};
  REQUIRE(::sigaction(SIGRTMAX, &caught, &before) == 0);
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  REQUIRE(::sigaction(SIGRTMAX - 1, &ignored, nullptr) == 0);
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGRTMAX - 2);
  REQUIRE(::sigprocmask(SIG_BLOCK, &blocked, nullptr) == 0);
  write_file(file, "");
  REQUIRE(offer_stack(file));
  const auto signal = stack_signal(::getpid(), file);
  REQUIRE(signal == SIGRTMAX - 3);
  struct sigaction kept {};
  REQUIRE(::sigaction(SIGRTMAX, &before, &kept) == 0);
  CHECK(kept.sa_handler == caught.sa_handler);
  REQUIRE(::sigaction(SIGRTMAX - 1, &before, &kept) == 0);
  CHECK(kept.sa_handler == SIG_IGN);
  REQUIRE(::sigprocmask(SIG_UNBLOCK, &blocked, nullptr) == 0);
  for (int round = 0; round < 2; ++round) {
    CHECK_THAT(own_stack(::getpid(), *signal, file),
               Contains(" in launcher_test\n") &&
                   Contains("__libc_start_main+0x") && !Contains("\nend"));
  }
  CHECK(is_whole_stack(read_file(file)));
  CHECK(!offer_stack(file));
}
