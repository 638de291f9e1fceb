# ddp_hide_details(TARGET): a shared library exports no internal symbols but those
# that others need.
function(ddp_hide_details target)
  set(script "${PROJECT_SOURCE_DIR}/cmake/exported_details.map")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${script}")
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${script}")
endfunction()

# ddp_installed_target(TARGET [LIBTORCH]): properties of a library or program that
# is installed. LIBTORCH: it uses LibTorch.
#
# Shared libraries have names with the minor version, because programs must be
# compiled again when it changes. Installed files find this project's shared
# libraries and the LibTorch of this build; CMAKE_SKIP_INSTALL_RPATH=ON installs
# without these paths.
function(ddp_installed_target target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "LIBTORCH" "" "")
  get_target_property(type ${target} TYPE)
  set(paths)
  if(type STREQUAL "EXECUTABLE")
    if(BUILD_SHARED_LIBS)
      file(RELATIVE_PATH to_libraries "${CMAKE_INSTALL_FULL_BINDIR}"
           "${CMAKE_INSTALL_FULL_LIBDIR}")
      set(paths "$ORIGIN/${to_libraries}")
    endif()
  else()
    set_target_properties(
      ${target} PROPERTIES VERSION ${PROJECT_VERSION}
                           SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
    if(BUILD_SHARED_LIBS)
      set(paths "$ORIGIN")
    endif()
  endif()

  # __FILE__ in messages names no folder of the builder. ddp_torch_private has
  # the option for LibTorch's headers.
  target_compile_options(
    ${target} PRIVATE "-fmacro-prefix-map=${PROJECT_BINARY_DIR}/="
                      "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
  if(arg_LIBTORCH)
    list(APPEND paths "${TORCH_INSTALL_PREFIX}/lib")
  endif()
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${paths}")

  # Tests call internal functions, so they are hidden only without tests. A
  # symbol that the script should export is missed here, not by a user.
  if(type STREQUAL "SHARED_LIBRARY" AND arg_LIBTORCH AND NOT DDP_BUILD_TESTS)
    ddp_hide_details(${target})
    target_link_options(${target} PRIVATE LINKER:-z,defs)
  endif()
endfunction()
