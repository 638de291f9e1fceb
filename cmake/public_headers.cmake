# ddp_public_headers(RESULT): the headers for users, by their paths in the
# repository: those of ddp/ and dp/, which forward to the rooms that hold the code,
# and those of the rooms amp, data, exchanges, nn and optim.
function(ddp_public_headers result)
  set(patterns "${PROJECT_SOURCE_DIR}/ddp/*.h" "${PROJECT_SOURCE_DIR}/dp/*.h")
  foreach(room IN ITEMS amp data exchanges nn optim)
    list(APPEND patterns "${PROJECT_SOURCE_DIR}/ddp/${room}/*.h")
  endforeach()
  file(GLOB found RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS ${patterns})
  # Other rooms of ours read these, users do not.
  list(REMOVE_ITEM found ddp/exchanges/exchange.h ddp/nn/replay_state.h
       ddp/optim/averaging_optimizer.h)
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# ddp_manual_headers(RESULT HEADER ...): these, and for each that forwards the one
# that it forwards to, which has the comments.
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

# ddp_headers_behind(RESULT HEADER ...): these headers of ours and all of ours that
# they include, by their paths in the repository. CMake runs again when one of
# them changes.
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
