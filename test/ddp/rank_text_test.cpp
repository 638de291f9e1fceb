#include "ddp/base/text/rank_text.h"

#include "test/support/catch.h"

using ddp::detail::names_by_rank;
using ddp::detail::rank_list;
using ddp::detail::texts_by_rank;

TEST_CASE("ranks are listed by ranges") {
  CHECK(rank_list({4}) == "rank 4");
  CHECK(rank_list({1, 0}) == "ranks 0-1");
  CHECK(rank_list({7, 2, 0, 1, 5, 6}) == "ranks 0-2, 5-7");
  CHECK(rank_list({5, 3}) == "ranks 3, 5");
}

TEST_CASE("texts are listed by ranks") {
  CHECK(texts_by_rank({"", ""}).empty());
  CHECK(texts_by_rank({"a", "b", "", "a"}) == "on ranks 0, 3: a; on rank 1: b");
}

TEST_CASE("names that several ranks have are said once") {
  CHECK(names_by_rank({"", "", ""}).empty());
  CHECK(names_by_rank({"", "other"}) == " on rank 1: other;");
  CHECK(names_by_rank({"a, b", "", "a, b", "c"}) ==
        " on ranks 0, 2: a, b; on rank 3: c;");
}

TEST_CASE("of many names the first are shown, and how many there are more") {
  std::string names = "p0";
  std::string shown = "p0";
  for (int index = 1; index < 60; ++index) {
    const std::string name = ", p" + std::to_string(index);
    names += name;
    shown += index < 12 ? name : "";
    const std::string rest =
        index < 12 ? "" : " and " + std::to_string(index - 11) + " more";
    CHECK(names_by_rank({names, names}) ==
          " on ranks 0-1: " + shown + rest + ";");
  }
}
