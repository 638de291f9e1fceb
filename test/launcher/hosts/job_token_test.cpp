#include "launcher/plan/job_token.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>

#include "launcher/base/error.h"
#include "launcher/base/fd.h"
#include "launcher/options/options.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using namespace launcher;

namespace {

const Environment kNoVariables{};
const Environment kVariable{{"DDPRUN_TOKEN", "of the environment"}};

struct TokenFile {
  ddp::test::TemporaryFolder folder;
  std::string path = folder / "token";

  explicit TokenFile(const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
};

std::string token_of(const std::string& text) {
  return job_token(TokenFile(text).path, kNoVariables);
}

}  // namespace

TEST_CASE("a job's token is a file's, else the environment's, else none") {
  const TokenFile file("secret\n");
  CHECK(job_token(file.path, kVariable) == "secret");
  CHECK(job_token("", kVariable) == "of the environment");
  CHECK(job_token("", kNoVariables).empty());
}

TEST_CASE("the token in a file is one line") {
  CHECK(token_of("secret") == "secret");
  CHECK(token_of(" \n two words\r\n") == "two words");
  CHECK(token_of(std::string(1024, 's') + "\n") == std::string(1024, 's'));
  const std::string what = "expected a file that holds the job's secret";
  for (const auto& [text, got] :
       {std::pair(std::string(), "is empty;"),
        std::pair(std::string(" \n"), "is empty;"),
        std::pair(std::string("two\nlines\n"), "holds other bytes"),
        std::pair(std::string("\0", 1), "holds other bytes"),
        std::pair(std::string("\xff"), "holds other bytes"),
        std::pair(std::string(1025, 's'), "holds more;"),
        std::pair(std::string(size_t{1} << 20, ' '), "is empty;")}) {
    CAPTURE(text.substr(0, 10));
    CHECK_THROWS_WITH(token_of(text), Contains(what) && Contains(got));
  }
}

TEST_CASE("a token's file that cannot be read is one line, a usage error") {
  const ddp::test::TemporaryFolder folder;
  for (const std::string& path : {folder / "none", folder.path()}) {
    try {
      job_token(path, kVariable);
      FAIL("no error for " << path);
    } catch (const LaunchError& error) {
      CHECK(error.exit_code() == kExitUsage);
      CHECK_THAT(error.what(),
                 Contains("token_file") &&
                     Contains("but " + path + " cannot be read (") &&
                     !Contains("\n"));
    }
  }
}

TEST_CASE("a token's file may be a pipe") {
  Pipe pipe = make_pipe();
  REQUIRE(::write(pipe.write.get(), "secret\n", 7) == 7);
  pipe.write.reset();
  CHECK(job_token("/proc/self/fd/" + std::to_string(pipe.read.get()),
                  kNoVariables) == "secret");
}

TEST_CASE("a pipe that never ends is not waited for") {
  constexpr std::chrono::milliseconds kPatience{20};
  const ddp::test::TemporaryFolder folder;
  const std::string unopened = folder / "fifo";
  REQUIRE(::mkfifo(unopened.c_str(), 0600) == 0);
  const Pipe open = make_pipe();
  REQUIRE(::write(open.write.get(), "half", 4) == 4);
  for (const std::string& path :
       {unopened, "/proc/self/fd/" + std::to_string(open.read.get())}) {
    CAPTURE(path);
    CHECK_THROWS_WITH(
        job_token(path, kNoVariables, kPatience),
        Contains(path + " is a pipe that has not ended in 20 ms"));
  }
}

TEST_CASE("--rdzv-conf names the token's file, whatever hosts meet by") {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--master-addr=a"},
        {"--rdzv-backend=c10d", "--rdzv-endpoint=a"}}) {
    std::vector<std::string> arguments{"--nnodes=2",
                                       "--rdzv-conf=token_file=/run/token"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.push_back("./train");
    const auto options =
        std::get<LaunchOptions>(parse_options(arguments, kNoVariables));
    const CoordinatedConfig* config = coordinated(options.rendezvous);
    REQUIRE(config != nullptr);
    CHECK(config->token_file == "/run/token");
    CHECK(options.warnings.empty());
  }
}
