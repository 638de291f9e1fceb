#include "ddp/base/text/record.h"

#include <string>
#include <vector>

#include "test/support/catch.h"

namespace ddp::detail {
namespace {

using Fields = std::vector<std::string>;

TEST_CASE("fields of any bytes come back", "[record]") {
  for (const Fields& fields :
       {Fields{},
        Fields{""},
        Fields{"", ""},
        Fields{"on", "off"},
        Fields{"a\tb\n", ":", "3:abc", std::string("\0\xff", 2)},
        Fields{std::string(100'000, 'x'), "12"}}) {
    CHECK(split_fields(join_fields(fields)).value() == fields);
  }
}

TEST_CASE("other texts are no records", "[record]") {
  for (const std::string& text : {"a",
                                  "2",
                                  ":",
                                  "2:o",
                                  "2:on3:off4:",
                                  "-1:",
                                  " 2:on",
                                  "+2:on",
                                  "2 :on",
                                  "99999999999999999999:on",
                                  "18446744073709551615:"}) {
    INFO(text);
    CHECK_FALSE(split_fields(text));
  }
}

}  // namespace
}  // namespace ddp::detail
