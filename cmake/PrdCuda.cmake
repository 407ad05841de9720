# CUDA and NCCL, which are optional: without a toolkit all but the CUDA module is built, and a
# replica with device = cuda:N is refused at run time. No driver and no NCCL library are needed to
# build, nor linked: the module loads NCCL when it is first used.
#
# Sets PRD_HAS_CUDA. Where it is on, CUDA is enabled as a language, CUDA::cudart_static is there, and
# targets with .cu files link `prd_cuda_build` beside `prd_build`.

set(PRD_CUDA AUTO CACHE STRING "Build the CUDA module: AUTO (if there is a toolkit), ON (or fail), OFF")
set_property(CACHE PRD_CUDA PROPERTY STRINGS AUTO ON OFF)
# Code for Hopper, and PTX that drivers compile for what comes after it.
set(CMAKE_CUDA_ARCHITECTURES "90-real;90-virtual" CACHE STRING "Devices that the CUDA module is built for")

# Why it cannot be built, in `why`; empty if it can.
function(prd_find_cuda why)
  set(${why} "" PARENT_SCOPE)
  if(PRD_SANITIZE)
    # nvcc cannot pass the sanitizers' flags on, and what they see is the code around the module.
    set(${why} "a sanitizer build has none" PARENT_SCOPE)
    return()
  endif()
  if(NOT DEFINED ENV{CUDACXX} AND NOT CMAKE_CUDA_COMPILER)
    find_program(PRD_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin
                 DOC "The CUDA compiler")
    if(NOT PRD_NVCC)
      set(${why} "no nvcc on the PATH, in CUDA_HOME or in /usr/local/cuda" PARENT_SCOPE)
      return()
    endif()
    set(ENV{CUDACXX} ${PRD_NVCC})
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(${why} "$ENV{CUDACXX} does not compile: see CMakeFiles/CMakeError.log" PARENT_SCOPE)
  endif()
endfunction()

set(PRD_HAS_CUDA OFF)
if(PRD_CUDA STREQUAL "OFF")
  set(prd_no_cuda "PRD_CUDA is OFF")
else()
  prd_find_cuda(prd_no_cuda)
endif()
if(NOT prd_no_cuda)
  if(NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER AND DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  find_path(PRD_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} DOC "Where nccl.h is")
  if(NOT PRD_NCCL_INCLUDE_DIR)
    set(prd_no_cuda "no nccl.h in ${CUDAToolkit_INCLUDE_DIRS} or the system's include directories")
  endif()
endif()
if(NOT prd_no_cuda)
  set(PRD_HAS_CUDA ON)
  message(STATUS "prd: CUDA ${CUDAToolkit_VERSION}: the CUDA module is built, for ${CMAKE_CUDA_ARCHITECTURES}")
elseif(PRD_CUDA STREQUAL "ON")
  message(FATAL_ERROR "prd: PRD_CUDA is ON, and there is no CUDA: ${prd_no_cuda}")
else()
  message(STATUS "prd: built without the CUDA module (device = cuda:N will be refused): ${prd_no_cuda}")
endif()

if(PRD_HAS_CUDA)
  # The warnings that nvcc's own output passes through the host compiler. CMake 3.25 does not know
  # cuda_std_20 of CUDA 13.
  add_library(prd_cuda_build INTERFACE)
  target_compile_options(prd_cuda_build INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-std=c++20 -Werror all-warnings -Xcompiler=-Wall,-Wextra,-Werror>")
  target_include_directories(prd_cuda_build INTERFACE ${PROJECT_SOURCE_DIR})
endif()
