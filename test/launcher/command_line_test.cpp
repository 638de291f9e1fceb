#include "launcher/base/error.h"
#include "launcher/options/abbreviation.h"
#include "launcher/options/options.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher;

namespace {

using Words = std::vector<std::string>;

const std::vector<OptionSpelling> kOptions{{"nproc-per-node", "", true},
                                           {"redirects", "r", true},
                                           {"report-json", "", true},
                                           {"log-dir", "", true},
                                           {"logs-specs", "", true},
                                           {"dry-run", "", false},
                                           {"dry-cleaning", "", false},
                                           {"module", "m", false}};

LaunchOptions options_of(Words arguments, const Environment& environment = {}) {
  return std::get<LaunchOptions>(
      parse_options(std::move(arguments), environment));
}

/// Returns the error line for the user, or "" without an error.
std::string refusal_of(Words arguments, const Environment& environment = {}) {
  try {
    parse_options(std::move(arguments), environment);
  } catch (const UsageError& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("options cut short are written out, up to the program") {
  const auto out = [](const Words& words) {
    return expand_abbreviations(words, kOptions);
  };
  CHECK(out({"--nproc=2", "p"}) == Words{"--nproc-per-node=2", "p"});
  CHECK(out({"--nproc", "2", "p"}) == Words{"--nproc-per-node", "2", "p"});
  CHECK(out({"--nproc_p", "--red", "--nproc=1", "x"}) ==
        Words{"--nproc-per-node", "--red", "--nproc-per-node=1", "x"});
  CHECK(out({"--redirect=3"}) == Words{"--redirects=3"});
  CHECK(out({"--log-=d"}) == Words{"--log-dir=d"});
  CHECK(out({"--log_=a=b"}) == Words{"--log-dir=a=b"});
  CHECK(out({"--dry-r", "p", "--nproc"}) == Words{"--dry-run", "p", "--nproc"});
  CHECK(out({"--", "--nproc"}) == Words{"--", "--nproc"});
  CHECK(out({"-", "--nproc"}) == Words{"-", "--nproc"});
  CHECK(out({"", "--nproc"}) == Words{"", "--nproc"});
  // The value of a short option is not the program.
  CHECK(out({"-r", "3", "--nproc=1", "p"}).at(2) == "--nproc-per-node=1");
  CHECK(out({"-r3", "--nproc=1", "p"}).at(1) == "--nproc-per-node=1");
  CHECK(out({"-mr", "3", "--nproc=1", "p"}).at(2) == "--nproc-per-node=1");
  CHECK(out({"-m", "p", "--nproc=1"}).at(2) == "--nproc=1");
  // An unknown option ends the options; it is refused later.
  CHECK(out({"--bogus", "--nproc=1"}) == Words{"--bogus", "--nproc=1"});
  CHECK(out({"-x", "--nproc=1"}) == Words{"-x", "--nproc=1"});
  CHECK(out({"--=1", "--nproc=1"}) == Words{"--=1", "--nproc=1"});
}

TEST_CASE("an option cut too short is an error that lists what it could be") {
  CHECK_THROWS_WITH(
      expand_abbreviations({"--log=x", "p"}, kOptions),
      "--log: expected the name of one option, but it could be --log-dir, "
      "--logs-specs; write more of it");
  CHECK_THROWS_WITH(expand_abbreviations({"--dry", "p"}, kOptions),
                    Contains("--dry-run, --dry-cleaning"));
  CHECK_NOTHROW(expand_abbreviations({"p", "--dry"}, kOptions));
}

TEST_CASE("our own options make none of torchrun's ambiguous") {
  CHECK(expand_abbreviations({"--re=3"}, kOptions) == Words{"--redirects=3"});
  CHECK(expand_abbreviations({"--rep=3"}, kOptions) ==
        Words{"--report-json=3"});
}

TEST_CASE("a command line of abbreviations") {
  const auto options = options_of({"--nproc=3",
                                   "--max=2",
                                   "--redirect",
                                   "1",
                                   "--log-d=logs",
                                   "--rdzv_en=localhost:0",
                                   "--standa",
                                   "--role=x",
                                   "train",
                                   "--nproc=9"});
  CHECK(options.worker_count->number == 3);
  CHECK(options.max_restarts == 2);
  CHECK(options.redirects.at(0).out);
  CHECK(options.log_dir == "logs");
  CHECK(options.program == Words{"train", "--nproc=9"});
  CHECK_THAT(refusal_of({"--rdzv-=x", "p"}),
             Contains("--rdzv-: expected the name of one option") &&
                 Contains("--rdzv-backend") && Contains("--rdzv-conf"));
}

TEST_CASE("switches in the environment are integers, as torchrun has them") {
  const auto dry_run = [](const std::string& text) {
    return options_of({"p"}, {{"PET_DRY_RUN", text}}).dry_run;
  };
  for (const char* on : {"1", "2", "-1", " 1 ", "+1", "01"}) {
    CAPTURE(on);
    CHECK(dry_run(on));
  }
  for (const char* off : {"0", "00", "-0", " 0\n", ""}) {
    CAPTURE(off);
    CHECK(!dry_run(off));
  }
  for (const char* wrong : {"true", "on", "yes", "1.0", " ", "+-1", "0x1"}) {
    CHECK(refusal_of({"p"}, {{"PET_STANDALONE", wrong}}) ==
          "PET_STANDALONE: expected 0 or 1, but got \"" + std::string(wrong) +
              "\"");
  }
  // The variable of an option on the command line is not read.
  CHECK(options_of({"--dry-run", "p"}, {{"PET_DRY_RUN", "true"}}).dry_run);
}

TEST_CASE("--run-path wins over --no-python and --module, as in torchrun") {
  CHECK(options_of({"--run-path", "--no-python", "p"}).program_kind ==
        ProgramKind::python);
  CHECK(options_of({"--no-python", "--run-path", "-m", "p"}).program_kind ==
        ProgramKind::python);
  CHECK(options_of({"--no-python", "p"}).program_kind ==
        ProgramKind::executable);
  CHECK(options_of({"-m", "p"}).program_kind == ProgramKind::module);
  CHECK(refusal_of({"-m", "--no-python", "p"}) ==
        "--module: expected to be without --no-python, but got both; leave one "
        "out");
}

TEST_CASE("--use-env of torch.distributed.launch is accepted") {
  CHECK(options_of({"--use_env", "--nproc_per_node=2", "p"}).program ==
        Words{"p"});
}

TEST_CASE("--virtual-local-rank in both spellings and by its variable") {
  CHECK(options_of({"--virtual-local-rank", "p"}).virtual_local_rank);
  CHECK(options_of({"--virtual_local_rank", "p"}).virtual_local_rank);
  CHECK(
      options_of({"p"}, {{"PET_VIRTUAL_LOCAL_RANK", "1"}}).virtual_local_rank);
  CHECK(!options_of({"p"}).virtual_local_rank);
}

TEST_CASE("--event-log-handler does nothing, with torchrun's values") {
  for (const char* name : {"console", "null", "dynamic_rendezvous"}) {
    const auto options =
        options_of({std::string("--event_log_handler=") + name, "p"});
    CHECK(options.program == std::vector<std::string>{"p"});
    CHECK(options.warnings.empty());
  }
  CHECK(refusal_of({"--event-log-handler=kafka", "p"}) ==
        "--event-log-handler: expected one of null, console, "
        "dynamic_rendezvous, but got \"kafka\"");
}

TEST_CASE(
    "--logs-specs names a plugin, so one line says that it does nothing") {
  CHECK(options_of({"--logs-specs=", "p"}).warnings.empty());
  CHECK(options_of({"--logs-specs=default", "p"}).warnings.empty());
  const auto warnings = options_of({"--logs_specs", "mine", "p"}).warnings;
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings.front(), Contains("--logs-specs=mine has no effect"));
}

TEST_CASE("texts of filters: a double comma is a comma") {
  const auto texts = [](const std::string& text) {
    return options_of({"--duplicate-stdout-filters", text, "p"}).out_filters;
  };
  CHECK(texts("apple,orange") == Words{"apple", "orange"});
  CHECK(texts("a,,b") == Words{"a,b"});
  CHECK(texts("a,,,b,,") == Words{"a,", "b,"});
  CHECK(texts(",,") == Words{","});
  CHECK(texts(" a ") == Words{" a "});
  CHECK(texts("").empty());
  CHECK(options_of({"p"}, {{"PET_DUPLICATE_STDERR_FILTERS", "x,y"}})
            .err_filters == Words{"x", "y"});
  for (const char* wrong : {",", "a,", ",a"}) {
    CHECK_THAT(refusal_of({"--duplicate_stderr_filters", wrong, "p"}),
               Contains("--duplicate-stderr-filters: expected texts"));
  }
}
