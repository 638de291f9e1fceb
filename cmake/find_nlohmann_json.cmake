ddp_header_package(nlohmann_json::nlohmann_json nlohmann/json.hpp)
if(NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json 3.10 CONFIG QUIET)
endif()
if(NOT TARGET nlohmann_json::nlohmann_json)
  ddp_fetch(
    nlohmann_json nlohmann-json3-dev
    https://github.com/nlohmann/json/archive/refs/tags/v3.11.3.tar.gz
    0d8ef5af7f9794e3263480193c491549b2ba6cc74bb018906202ada498a79406)
endif()
