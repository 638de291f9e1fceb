# ddp_public_headers(RESULT): the public headers, by their paths in the
# repository: the headers in ddp/ and dp/, which forward to the folders with the
# code, and the headers in ddp/{amp,data,exchanges,nn,optim}.
function(ddp_public_headers result)
  set(patterns "${PROJECT_SOURCE_DIR}/ddp/*.h" "${PROJECT_SOURCE_DIR}/dp/*.h")
  foreach(room IN ITEMS amp data exchanges nn optim)
    list(APPEND patterns "${PROJECT_SOURCE_DIR}/ddp/${room}/*.h")
  endforeach()
  file(GLOB found RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS ${patterns})
  # Headers for other folders of the project, not for users.
  list(REMOVE_ITEM found ddp/exchanges/exchange.h)
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# ddp_manual_headers(RESULT HEADER ...): the given headers, with each forwarding
# header replaced by its target, which contains the comments.
function(ddp_manual_headers result)
  set(found)
  foreach(header IN LISTS ARGN)
    file(STRINGS "${PROJECT_SOURCE_DIR}/${header}" lines)
    if("${lines}" MATCHES "^#pragma once;+#include \"([^\"]+)\"[^;]*$")
      set(header "${CMAKE_MATCH_1}")
    endif()
    list(APPEND found "${header}")
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# ddp_headers_behind(RESULT HEADER ...): the given headers and all headers of
# the project that they include, by their paths in the repository. CMake runs
# again if one of them changes.
function(ddp_headers_behind result)
  set(waiting ${ARGN})
  set(found)
  while(waiting)
    list(POP_FRONT waiting header)
    list(APPEND found "${header}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
                 "${PROJECT_SOURCE_DIR}/${header}")
    file(STRINGS "${PROJECT_SOURCE_DIR}/${header}" lines REGEX "^#include \"d?dp/")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"(.*)\".*" "\\1" included "${line}")
      if(NOT included IN_LIST found AND NOT included IN_LIST waiting)
        list(APPEND waiting "${included}")
      endif()
    endforeach()
  endwhile()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()
