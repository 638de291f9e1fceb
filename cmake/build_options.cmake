# ddp_build_options: what every target of ours is compiled with. Not exported.
add_library(ddp_build_options INTERFACE)
target_compile_features(ddp_build_options INTERFACE cxx_std_20)
target_compile_options(
  ddp_build_options
  INTERFACE -fPIC # one setting for libraries and programs: they share a PCH
            -Wall
            -Wextra
            -Wnon-virtual-dtor
            -Woverloaded-virtual
            -Wno-unused-parameter
            $<$<CXX_COMPILER_ID:GNU>:-Winvalid-pch>
            # Over LibTorch, GCC would collect garbage several times a file and
            # walk through the precompiled header each time: 8 % of the time.
            $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1572864>
            # GCC 12 sees overlaps in "text" + std::string that are not there.
            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(DDP_CCACHE)
  target_compile_options(
    ddp_build_options
    INTERFACE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
              $<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>)
endif()

if(DDP_SANITIZE)
  target_compile_options(
    ddp_build_options
    INTERFACE -fno-omit-frame-pointer
              # GCC's own words: sanitizers make it warn falsely.
              $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(ddp_build_options INTERFACE -fsanitize=${DDP_SANITIZE})
endif()
