# DDP_TORCH_PYTHON: the Python whose torch is the LibTorch of this build, for
# tests that compare with PyTorch itself; otherwise any Python with torch and
# numpy; empty if there is none.
set(DDP_TORCH_PYTHON "" CACHE FILEPATH "Python that imports torch")

foreach(python IN ITEMS python3 "${DDP_CACHE_DIR}/venv/bin/python3")
  execute_process(
    COMMAND
      "${python}" -c
      "import importlib.util as u, os, sys; s = u.find_spec('torch'); print(sys.executable, os.path.dirname(s.origin), sep=';') if s and s.origin and u.find_spec('numpy') else None"
    OUTPUT_VARIABLE _ddp_found
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(_ddp_found)
    list(GET _ddp_found 0 _ddp_python)
    list(GET _ddp_found 1 _ddp_root)
    if(NOT DDP_TORCH_PYTHON OR _ddp_root STREQUAL TORCH_INSTALL_PREFIX)
      set(DDP_TORCH_PYTHON "${_ddp_python}"
          CACHE FILEPATH "Python that imports torch" FORCE)
    endif()
  endif()
endforeach()
message(STATUS "Python with torch: ${DDP_TORCH_PYTHON}")
