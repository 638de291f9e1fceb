#include "launcher/workers/progress/progress_text.h"

#include "test/support/catch.h"

using launcher::describe;
using launcher::parse_progress;
using namespace std::chrono_literals;

TEST_CASE("progress: a line of bash's is shown as it is") {
  const auto progress = parse_progress("step 12 of 90\n");
  CHECK(progress.text == "step 12 of 90");
  CHECK(describe(progress) == "step 12 of 90");
  CHECK(!progress.limit);
  CHECK(!progress.collectives);
  CHECK(!progress.waits);
  CHECK(progress.pid == 0);
}

TEST_CASE("progress: what the library writes, in columns") {
  const auto progress = parse_progress(
      "pid=0000001234 beat=0000000077 pass=0000000012 collectives=0000000345 "
      "waits=1 "
      "limit=         all-reduce of gradients        \nleft over");
  CHECK(progress.pid == 1234);
  CHECK(progress.passes == 12);
  CHECK(progress.collectives == 345);
  CHECK(progress.waits);
  CHECK(!progress.limit);
  CHECK(progress.text == "all-reduce of gradients");
  CHECK(describe(progress) ==
        "all-reduce of gradients, after backward pass 12, in collective 345");
}

TEST_CASE("progress: words of a rank's place") {
  CHECK(describe(parse_progress("")) == "");
  CHECK(describe(parse_progress("waits=1")) == "");
  CHECK(describe(parse_progress("collectives=0 pass=0 saving")) ==
        "saving, before the end of a backward pass");
  CHECK(describe(parse_progress("collectives=3 waits=0")) ==
        "after collective 3");
}

TEST_CASE("progress: limits") {
  CHECK(parse_progress("saving limit=600").limit->time == 600s);
  CHECK(parse_progress("saving limit=600").text == "saving");
  const auto relative = parse_progress("limit=3x");
  CHECK(!relative.limit->time);
  CHECK(relative.limit->times == 3);
}

TEST_CASE("progress: what makes no sense is text, and never too long") {
  const char* word = GENERATE("limit=soon",
                              "limit=-3",
                              "limit=x",
                              "limit=99999999999999999999",
                              "limit=31622401",
                              "collectives=",
                              "collectives=1e3",
                              "collectives=9999999999999999999999",
                              "waits=2",
                              "pid=-1",
                              "pass= 3",
                              "=",
                              "other=1");
  const auto progress = parse_progress(word);
  CHECK(progress.text == word);
  CHECK(!progress.limit);
  CHECK(!progress.collectives);
  CHECK(!progress.waits);
  CHECK(progress.pid == 0);
}

TEST_CASE("progress: any bytes are read, and shown as ASCII") {
  CHECK(parse_progress(std::string("a\x1b[2Jb\0 c", 9)).text == "a?[2Jb c");
  CHECK(parse_progress("\xff").text == "?");
  const std::string endless(1 << 20, 'x');
  CHECK(parse_progress(endless).text.size() <= 400);
  CHECK(parse_progress("\nstep 1").text.empty());
}
