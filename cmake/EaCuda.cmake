# Are the CUDA kernels built? Only nvcc's presence decides, never a GPU's: kernels are
# compiled for fixed architectures and the driver is opened at run time.
#
#   EA_CUDA_KERNELS   ON when they are built
#   EA_NVCC           nvcc's path, when they are
#   EA_NVCC_VERSION   13.0.88

# CUDACXX, as CMake itself reads it, may be a path or a name; then PATH; then the usual place.
set(nvcc_names nvcc)
if(DEFINED ENV{CUDACXX})
  list(PREPEND nvcc_names "$ENV{CUDACXX}")
endif()
find_program(EA_NVCC NAMES ${nvcc_names} PATHS /usr/local/cuda/bin DOC "nvcc, which compiles the CUDA kernels")

# Sets EA_NVCC_VERSION, or result to the reason why this nvcc is of no use.
function(ea_nvcc_look result)
  if(NOT EA_NVCC)
    set(${result} "nvcc was not found" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${EA_NVCC} --version OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE status)
  if(NOT status EQUAL 0 OR NOT text MATCHES "V([0-9]+[.][0-9]+[.][0-9]+)")
    set(${result} "${EA_NVCC} --version fails" PARENT_SCOPE)
    return()
  endif()
  if(CMAKE_MATCH_1 VERSION_LESS 12.0)
    set(${result} "nvcc ${CMAKE_MATCH_1} is too old, sm_90a needs 12.0" PARENT_SCOPE)
    return()
  endif()
  set(EA_NVCC_VERSION ${CMAKE_MATCH_1} PARENT_SCOPE)
  set(${result} "" PARENT_SCOPE)
endfunction()

set(EA_CUDA_KERNELS OFF)
if(NOT EA_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "EA_CUDA: found ${EA_CUDA}, allowed AUTO, ON, OFF")
elseif(EA_CUDA STREQUAL "OFF")
  message(STATUS "extattn: CPU only, as asked (EA_CUDA=OFF)")
else()
  ea_nvcc_look(nvcc_trouble)
  if(NOT nvcc_trouble)
    set(EA_CUDA_KERNELS ON)
    message(STATUS "extattn: CUDA kernels by nvcc ${EA_NVCC_VERSION} (${EA_NVCC})")
  elseif(EA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "EA_CUDA=ON, but ${nvcc_trouble}; put nvcc on PATH or name it in CUDACXX")
  else()
    message(STATUS "extattn: CPU only, ${nvcc_trouble}")
  endif()
endif()
