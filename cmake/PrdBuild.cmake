# What every target of the project is built with, as one interface target: `prd_build`.
# Targets link it PRIVATE, so none of it reaches those who use the installed worker library.

include(GNUInstallDirs)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(CapnProto REQUIRED)
find_package(cppzmq REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)
pkg_check_modules(rocksdb REQUIRED IMPORTED_TARGET rocksdb)
find_program(PRD_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH REQUIRED)  # Debian's, which has numpy and PyTorch

set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

add_library(prd_build INTERFACE)
target_compile_features(prd_build INTERFACE cxx_std_20)
# Designated initializers leave the rest at its default on purpose.
set(prd_warnings -Wall -Wextra -Wno-missing-field-initializers -Wpedantic -Wshadow)
set(prd_cxx_warnings -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual)
target_compile_options(prd_build INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${prd_warnings}>"
                                           "$<$<COMPILE_LANGUAGE:CXX>:${prd_cxx_warnings}>"
                                           "$<$<COMPILE_LANGUAGE:C,CXX>:-Werror>")
target_include_directories(prd_build INTERFACE ${PROJECT_SOURCE_DIR})

if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC looks for garbage from 128 MiB on, and rarely finds much. From 1 GiB on it takes about a tenth less time, and up to
  # half as much memory again.
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:--param=ggc-min-heapsize=1048576;--param=ggc-min-expand=1000>")
endif()

if(PRD_SANITIZE)
  # For every target, the generated code too: a sanitizer sees only what was compiled with it. GCC's manual says that
  # its warnings of what may be uninitialized are not to be trusted then.
  add_compile_options(-fsanitize=${PRD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
  if(PRD_SANITIZE MATCHES "undefined")
    # vptr reports every object of RocksDB's classes, for RocksDB is built without RTTI. Clang's `function` needs a runtime
    # that C programs, which link libprd too, do not have.
    add_compile_options(-fno-sanitize=vptr $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
    if(PRD_TEST_BRIEF)
      # These are a third of the compile time: they check each access. AddressSanitizer reports null pointers as well.
      add_compile_options(-fno-sanitize=null,alignment,object-size)
    endif()
  endif()
  add_link_options(-fsanitize=${PRD_SANITIZE})
endif()

# prd_link_quickly(): the programs of this folder and below, which nobody installs, are linked by lld, where it is
# there: in a quarter of the time.
find_program(PRD_LLD ld.lld DOC "The linker of test programs")
macro(prd_link_quickly)
  if(PRD_LLD)
    add_link_options(-fuse-ld=lld)
  endif()
endmacro()
if(PRD_SANITIZE)
  prd_link_quickly()
endif()

if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
  # ccache leaves a source with a precompiled header to the compiler, unless it is told not to.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros
                                  ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# prd_parse_once(NAME): the library NAME, whose headers of the standard library others use as parsed; only those
# with the same options can. They are what any code may include (tests/lint), and they hide no #include that is
# missing from the preset debug, which has no such library.
function(prd_parse_once name)
  add_library(${name} STATIC ${PROJECT_SOURCE_DIR}/cmake/headers.cc)
  target_link_libraries(${name} PRIVATE prd_build)
  target_precompile_headers(${name} PRIVATE <algorithm> <array> <cmath> <cstddef> <cstdint> <cstdio> <cstring> <deque>
    <functional> <limits> <map> <memory> <optional> <set> <span> <string> <string_view> <utility> <variant> <vector>)
endfunction()

# prd_add_library(NAME SOURCES ... DEPENDS ...): a static library of the tree.
# The presets compile the sources of a target as one (CMAKE_UNITY_BUILD), in a third of the time, and with headers that are
# parsed once; the preset debug, for those who change one file, compiles each alone.
if(CMAKE_UNITY_BUILD)
  set(prd_headers prd_headers)
  prd_parse_once(prd_headers)
endif()
function(prd_add_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC ${arg_DEPENDS} PRIVATE prd_build)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  if(prd_headers)
    target_precompile_headers(${name} REUSE_FROM ${prd_headers})
  endif()
endfunction()

# prd_compile_quickly(): for the sources of this folder and below, where only the tests of other folders run them under a
# sanitizer (PRD_TEST_BRIEF): not optimised.
macro(prd_compile_quickly)
  if(PRD_TEST_BRIEF AND PRD_SANITIZE)
    add_compile_options(-O0)
    set(prd_headers prd_quick_headers)
    if(NOT TARGET prd_quick_headers)
      prd_parse_once(prd_quick_headers)
    endif()
  endif()
endmacro()

# prd_add_program(NAME SOURCES ... DEPENDS ...): a program in build/PRESET/bin.
function(prd_add_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} prd_build)
endfunction()

# prd_describe(NAME COMPONENT): the program's manual page, made from its --help, and its completion in
# bash. CONFIG FILE: also a page of what a configuration file says in its comments.
set(prd_manual ${PROJECT_SOURCE_DIR}/tools/package_lib/manual.py)
function(prd_describe name component)
  cmake_parse_arguments(arg "" "CONFIG" "" ${ARGN})
  set(make ${PRD_PYTHON} -B ${prd_manual})
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS ${prd_manual} ${arg_CONFIG})
  add_custom_command(TARGET ${name} POST_BUILD VERBATIM
    COMMAND ${make} $<TARGET_FILE:${name}> > ${CMAKE_CURRENT_BINARY_DIR}/${name}.1)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.1
          DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${component})
  install(FILES ${PROJECT_SOURCE_DIR}/tools/package_lib/completion.bash RENAME ${name}
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT ${component})
  if(arg_CONFIG)
    cmake_path(GET arg_CONFIG FILENAME file)
    add_custom_command(TARGET ${name} POST_BUILD VERBATIM
      COMMAND ${make} --config ${arg_CONFIG} > ${CMAKE_CURRENT_BINARY_DIR}/${file}.5)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${file}.5
            DESTINATION ${CMAKE_INSTALL_MANDIR}/man5 COMPONENT ${component})
  endif()
endfunction()
