#include <map>
#include <set>
#include <string>

#include "launcher/machine/strays.h"
#include "test/support/catch.h"

using namespace launcher;
using Catch::Matchers::UnorderedEquals;
using Pids = std::vector<pid_t>;

namespace {

/// Processes below a worker, by pids that tell their parents: 12 is a child of
/// 1, which is the worker, and 123 one of 12. A '+' handles the signal, and a
/// 's' is a shell.
class Tree {
 public:
  explicit Tree(std::map<pid_t, std::string> processes)
      : processes_(std::move(processes)) {
    for (const auto& entry : processes_) {
      children_.emplace(entry.first / 10, entry.first);
    }
  }

  Pids receivers() const {
    return receivers_of(
        1,
        children_,
        [this](pid_t pid) { return has(pid, '+'); },
        [this](pid_t pid) { return has(pid, 's'); });
  }

 private:
  bool has(pid_t pid, char property) const {
    return processes_.at(pid).find(property) != std::string::npos;
  }

  std::map<pid_t, std::string> processes_;
  Children children_;
};

}  // namespace

TEST_CASE(
    "a program that handles the signal gets it, and its children do not") {
  CHECK(Tree({{1, "+"}}).receivers() == Pids{1});
  CHECK(Tree({{1, "+"}, {11, ""}, {12, "+"}, {121, "+"}}).receivers() ==
        Pids{1});
  CHECK(Tree({{1, "+"}, {11, "s"}, {111, "+"}}).receivers() == Pids{1});
}

TEST_CASE("behind shells and starters the program that handles it gets it") {
  const std::string starter = GENERATE("s", "s+", "");
  CHECK(Tree({{1, starter}, {11, "+"}, {111, "+"}}).receivers() == Pids{11});
  CHECK(
      Tree({{1, starter}, {11, starter}, {111, "+"}, {112, ""}}).receivers() ==
      Pids{111});
  CHECK_THAT(Tree({{1, starter}, {11, "+"}, {12, ""}, {13, "+"}}).receivers(),
             UnorderedEquals(Pids{11, 13}));
}

TEST_CASE("a shell gets the signal if nothing below it handles it") {
  CHECK(Tree({{1, "s+"}, {11, ""}}).receivers() == Pids{1});
  CHECK(Tree({{1, "s"}, {11, "s+"}, {111, ""}}).receivers() == Pids{11});
  CHECK(Tree({{1, "s+"}, {11, "s+"}, {111, ""}}).receivers() == Pids{11});
}

TEST_CASE("where no process handles the signal nobody is chosen") {
  CHECK(Tree({{1, ""}}).receivers().empty());
  CHECK(Tree({{1, "s"}, {11, ""}, {111, ""}}).receivers().empty());
  CHECK(receivers_of(
            1, {}, [](pid_t) { return false; }, [](pid_t) { return false; })
            .empty());
}
