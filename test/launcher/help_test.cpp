#include <sstream>

#include "launcher/cli/options.h"
#include "test/support/catch.h"

using Catch::Contains;

namespace {

std::string information_of(const std::string& argument) {
  return std::get<launcher::Information>(
             launcher::parse_options({argument}, {}))
      .text;
}

}  // namespace

TEST_CASE("help and version are information, not errors") {
  CHECK_THAT(information_of("--help"), Contains("--nproc-per-node"));
  CHECK_THAT(information_of("-h"), Contains("--grace-period"));
  CHECK_THAT(information_of("--he"), Contains("--grace-period"));
  CHECK_THAT(information_of("--version"), Contains("ddprun "));
}

TEST_CASE("help shows examples, and each option once, in a group") {
  const std::string text = information_of("--help");
  CHECK_THAT(text, Contains("\nExamples:\n"));
  const char* groups[] = {"Workers",
                          "Program",
                          "Failures, restarts and signals",
                          "Output and logs",
                          "Hosts",
                          ("For torchrun's command lines: checked, without "
                           "effect"),
                          "Other"};
  size_t last = 0;
  for (const char* group : groups) {
    const size_t at = text.find("\n" + std::string(group) + ":\n");
    CAPTURE(group);
    REQUIRE(at != std::string::npos);
    CHECK(at > last);
    last = at;
  }
  CHECK_THAT(text, !Contains("Options:") && !Contains("OPTIONS:"));
  CHECK_THAT(text, !Contains("\n\n\n"));
  for (const char* option : {"--nproc-per-node N",
                             "-r, --redirects MAP",
                             "-m, --module",
                             "--nnodes N",
                             "--rdzv-conf K=V",
                             "--dry-run",
                             "-h, --help"}) {
    CAPTURE(option);
    const size_t at = text.find("  " + std::string(option));
    CHECK(at != std::string::npos);
    CHECK(text.find("  " + std::string(option), at + 1) == std::string::npos);
  }
  CHECK(text.find("-h, --help") > text.find("\nOther:"));
}

TEST_CASE("help has lines that fit a terminal") {
  std::istringstream stream(information_of("--help"));
  for (std::string line; std::getline(stream, line);) {
    CAPTURE(line);
    CHECK(line.size() <= 100);
    CHECK(line.find('\t') == std::string::npos);
  }
}
