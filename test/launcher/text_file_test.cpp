#include "launcher/base/text_file.h"

#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using launcher::read_text;

TEST_CASE("the text of a file, or none where it cannot be read") {
  const ddp::test::TemporaryFolder folder;
  const std::string text(10'000, 'x');
  ddp::test::write_file(folder / "long", text);
  CHECK(read_text(folder / "long") == text);
  CHECK(read_text(folder / "long", 5'000) == text.substr(0, 5'000));
  CHECK(read_text(folder / "none") == "");
  // As with a process in /proc that ends meanwhile: open() works, read() fails.
  CHECK(read_text(folder.path()) == "");
}
