# ddp_public_headers(RESULT): those of ddp/ and dp/, by their paths in the
# repository. What is in detail/ is not for users.
function(ddp_public_headers result)
  file(GLOB_RECURSE found RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS
       "${PROJECT_SOURCE_DIR}/ddp/*.h" "${PROJECT_SOURCE_DIR}/dp/*.h")
  list(FILTER found EXCLUDE REGEX "^d?dp/detail/")
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
