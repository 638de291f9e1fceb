# ddp_header_package(TARGET HEADER): creates TARGET from DDP_HEADERS_DIR if that
# folder contains HEADER.
function(ddp_header_package target header)
  if(DDP_HEADERS_DIR AND EXISTS "${DDP_HEADERS_DIR}/include/${header}")
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${target} SYSTEM
                               INTERFACE "${DDP_HEADERS_DIR}/include")
    message(STATUS "${target}: headers in ${DDP_HEADERS_DIR}")
  endif()
endfunction()
