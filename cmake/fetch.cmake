# ddp_fetch(NAME PACKAGE URL SHA256 [option ...]): makes a dependency available
# with FetchContent. The archive is downloaded into the cache folder that all
# clones share. PACKAGE is the distribution's package, for the error.
include(FetchContent)
if(POLICY CMP0135)
  cmake_policy(SET CMP0135 NEW)
endif()

# Downloads into FILE, unless it is there. FetchContent itself would end with the
# log of curl, after retries.
function(ddp_download name package url sha256 file)
  if(EXISTS "${file}")
    return()
  endif()
  string(RANDOM LENGTH 8 part)
  file(DOWNLOAD "${url}" "${file}.${part}" STATUS status INACTIVITY_TIMEOUT 60)
  list(POP_FRONT status code)
  if(code EQUAL 0)
    file(SHA256 "${file}.${part}" found)
    if(NOT found STREQUAL sha256)
      set(status "its SHA-256 is ${found}, not ${sha256}")
      set(code 1)
    endif()
  endif()
  if(NOT code EQUAL 0)
    file(REMOVE "${file}.${part}")
    message(
      FATAL_ERROR
        "Expected ${name}, but no package has it, and ${url} cannot be "
        "downloaded (${status}). Install ${package} (Debian, Ubuntu), or pass "
        "-DDDP_HEADERS_DIR=<folder> with the headers of all dependencies, which "
        "./scripts/pack-headers fills on a machine with a network.")
  endif()
  file(RENAME "${file}.${part}" "${file}")
endfunction()

macro(ddp_fetch name package url sha256)
  string(TOUPPER ${name} _ddp_upper)
  set(_ddp_archive "${url}")
  if(NOT FETCHCONTENT_SOURCE_DIR_${_ddp_upper} AND NOT FETCHCONTENT_FULLY_DISCONNECTED)
    message(STATUS "${name}: not found, taking ${url}")
    set(_ddp_archive "${DDP_CACHE_DIR}/downloads/${name}-${sha256}.tar.gz")
    ddp_download(${name} ${package} "${url}" ${sha256} "${_ddp_archive}")
  endif()
  FetchContent_Declare(${name} URL "${_ddp_archive}" URL_HASH SHA256=${sha256} ${ARGN})
  FetchContent_MakeAvailable(${name})
endmacro()
