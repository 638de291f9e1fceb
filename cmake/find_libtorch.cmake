# LibTorch 2.11 or newer: Torch_DIR or CMAKE_PREFIX_PATH, else the torch that
# python3 imports, else the one that ./scripts/setup installed.
set(DDP_TORCH_VERSION 2.11)
find_package(Torch ${DDP_TORCH_VERSION} QUIET)

foreach(python IN ITEMS python3 "${DDP_CACHE_DIR}/venv/bin/python3")
  if(NOT Torch_FOUND)
    execute_process(
      COMMAND
        "${python}" -c
        "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s and s.origin else '')"
      OUTPUT_VARIABLE _ddp_torch_root
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(_ddp_torch_root)
      unset(Torch_DIR CACHE)
      find_package(Torch ${DDP_TORCH_VERSION} QUIET
                   PATHS "${_ddp_torch_root}" NO_DEFAULT_PATH)
    endif()
  endif()
endforeach()

if(NOT Torch_FOUND)
  message(
    FATAL_ERROR
      "Expected LibTorch ${DDP_TORCH_VERSION} or newer, but found none by "
      "Torch_DIR, CMAKE_PREFIX_PATH or python3. Run ./scripts/setup, or pass "
      "-DCMAKE_PREFIX_PATH=<libtorch>.")
endif()
message(STATUS "LibTorch: ${TORCH_INSTALL_PREFIX}")
