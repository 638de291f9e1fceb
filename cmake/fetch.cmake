# ddp_fetch(NAME URL SHA256 [option ...]): downloads with FetchContent into the
# cache folder that all clones share.
include(FetchContent)
if(POLICY CMP0135)
  cmake_policy(SET CMP0135 NEW)
endif()

macro(ddp_fetch name url sha256)
  message(STATUS "${name}: not found, taking ${url}")
  FetchContent_Declare(
    ${name}
    URL "${url}"
    URL_HASH SHA256=${sha256}
    DOWNLOAD_DIR "${DDP_CACHE_DIR}/downloads" ${ARGN})
  FetchContent_MakeAvailable(${name})
endmacro()
