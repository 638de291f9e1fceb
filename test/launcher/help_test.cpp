#include <sstream>

#include "launcher/options/options.h"
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

TEST_CASE("help has at most 80 columns") {
  std::istringstream text(information_of("--help"));
  for (std::string line; std::getline(text, line);) {
    CAPTURE(line);
    CHECK(line.size() <= 80);
  }
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

TEST_CASE("the manual page has each group and option of help, once") {
  const auto without = [](std::string text, const std::string& what) {
    for (size_t at; (at = text.find(what)) != std::string::npos;) {
      text.erase(at, what.size());
    }
    return text;
  };
  const std::string page = without(launcher::manual(), "\\");
  std::istringstream stream(information_of("--help"));
  int options = 0;
  for (std::string line; std::getline(stream, line);) {
    const size_t dashes = line.find("--");
    if (line.rfind("  -", 0) != 0 || dashes > 6) {
      continue;
    }
    CAPTURE(line);
    const std::string name = line.substr(2, line.find(' ', dashes) - 2);
    const std::string entry = ".TP\nfB" + name + "fR";
    const size_t at = page.find(entry);
    CHECK(at != std::string::npos);
    CHECK(page.find(entry, at + 1) == std::string::npos);
    ++options;
  }
  CHECK(options > 40);
  for (const char* part : {".TH DDPRUN 1 ",
                           ".SH NAME\nddprun - ",
                           ".SS Hosts\n",
                           "fB-r, --redirectsfR fIMAPfR\nStreams",
                           ".SH EXIT STATUS\n.TP\nfB0fR\nAll",
                           ".TP\nfB128 + NfR\n",
                           ".SH ENVIRONMENT\n.TP\nfBLOGLEVELfR\n",
                           ".SH EXAMPLES\n"}) {
    CHECK_THAT(page, Contains(part));
  }
}

TEST_CASE("help has lines that fit a terminal") {
  std::istringstream stream(information_of("--help"));
  for (std::string line; std::getline(stream, line);) {
    CAPTURE(line);
    CHECK(line.size() <= 100);
    CHECK(line.find('\t') == std::string::npos);
  }
}
