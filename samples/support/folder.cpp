#include "samples/support/folder.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace samples {

std::filesystem::path find_in_folder(const std::filesystem::path& folder,
                                     const std::vector<std::string>& names,
                                     const std::string& what) {
  TORCH_CHECK(std::filesystem::is_directory(folder),
              "Expected a folder with ",
              what,
              " at ",
              folder.string(),
              ", but there is none. Name it with --data.");
  for (const auto& name : names) {
    if (std::filesystem::exists(folder / name)) {
      return folder / name;
    }
  }
  TORCH_CHECK(false,
              "Expected ",
              c10::Join(" or ", names),
              " in ",
              folder.string(),
              ", but it is not there. Name the folder with --data.");
}

}  // namespace samples
