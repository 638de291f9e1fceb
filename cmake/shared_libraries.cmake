# ddp_library_version(TARGET): names of a shared library. Programs must be
# compiled again after a change of the minor version.
function(ddp_library_version target)
  set_target_properties(
    ${target} PROPERTIES VERSION ${PROJECT_VERSION}
                         SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endfunction()

# ddp_install_rpath(TARGET [LIBTORCH]): where an installed target finds this
# project's shared libraries, and with LIBTORCH also the LibTorch of this build.
# CMAKE_SKIP_INSTALL_RPATH=ON installs without these paths.
function(ddp_install_rpath target)
  set(paths)
  get_target_property(type ${target} TYPE)
  if(BUILD_SHARED_LIBS AND type STREQUAL "EXECUTABLE")
    file(RELATIVE_PATH to_libraries "${CMAKE_INSTALL_FULL_BINDIR}"
         "${CMAKE_INSTALL_FULL_LIBDIR}")
    set(paths "$ORIGIN/${to_libraries}")
  elseif(BUILD_SHARED_LIBS)
    set(paths "$ORIGIN")
  endif()
  if("LIBTORCH" IN_LIST ARGN)
    list(APPEND paths "${TORCH_INSTALL_PREFIX}/lib")
  endif()
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${paths}")
endfunction()
