# Compiles kernels and embeds them in the library.
#
#   ea_cuda_kernel(NAME SOURCE [DEFINES A=1 B=2 ...] [ARCHS sm_80 sm_90a ...])
#
# compiles SOURCE once for each architecture that the toolkit knows and adds the images to
# the table of src/cuda/device.h under NAME, which is also the entry point's name (the
# source sees it as EA_KERNEL_NAME). Beside each cubin lies NAME.ARCH.log with what ptxas says
# about registers, shared memory and spills, for tests/gpu/check_cubins.py.
#
#   ea_cuda_embed(TARGET)
#
# makes the object library that holds the table. Without nvcc the table is empty.

set(EA_CUDA_ALL_ARCHS "sm_80;sm_90a;sm_100;sm_120" CACHE STRING "Architectures to compile kernels for")
set(EA_CUDA_DIR ${PROJECT_BINARY_DIR}/cuda)

if(EA_CUDA_KERNELS)
  execute_process(COMMAND ${EA_NVCC} --list-gpu-code OUTPUT_VARIABLE known_archs)
  get_filename_component(nvcc_dir ${EA_NVCC} DIRECTORY)
  find_program(EA_FATBINARY fatbinary HINTS ${nvcc_dir} REQUIRED DOC "fatbinary, which compresses the kernels")
  file(MAKE_DIRECTORY ${EA_CUDA_DIR})
  # An image for another major version does not run, so skipping what the toolkit does not know
  # costs only the chips that it does not know either. (sm_90a goes with sm_90.)
  set(EA_CUDA_ARCHS "")
  foreach(arch IN LISTS EA_CUDA_ALL_ARCHS)
    string(REGEX REPLACE "a$" "" base ${arch})
    if(known_archs MATCHES "${base}[\r\n]")
      list(APPEND EA_CUDA_ARCHS ${arch})
    else()
      message(STATUS "extattn: no kernels for ${arch}, nvcc ${EA_NVCC_VERSION} does not know it")
    endif()
  endforeach()
endif()

function(ea_cuda_kernel name source)
  if(NOT EA_CUDA_KERNELS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "DEFINES;ARCHS")
  if(NOT arg_ARCHS)
    set(arg_ARCHS ${EA_CUDA_ALL_ARCHS})
  endif()
  list(TRANSFORM arg_DEFINES PREPEND -D)
  foreach(arch IN LISTS arg_ARCHS)
    if(NOT arch IN_LIST EA_CUDA_ARCHS)
      continue()
    endif()
    string(REPLACE sm_ compute_ virtual_arch ${arch})
    string(REPLACE sm_ "" number ${arch})
    set(base ${EA_CUDA_DIR}/${name}.${arch})
    add_custom_command(
      OUTPUT ${base}.cubin
      BYPRODUCTS ${base}.log
      DEPFILE ${base}.d
      COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/logged.sh ${base}.log
        ${EA_NVCC} -cubin -gencode=arch=${virtual_arch},code=${arch} -O3 -std=c++17
        -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src -DEA_KERNEL_NAME=${name} ${arg_DEFINES}
        -Xptxas -v --Werror all-warnings -MD -MF ${base}.d -MT ${base}.cubin
        -o ${base}.cubin ${CMAKE_CURRENT_SOURCE_DIR}/${source}
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} ${PROJECT_SOURCE_DIR}/cmake/logged.sh
      COMMENT "nvcc ${name} ${arch}"
      VERBATIM)
    add_custom_command(
      OUTPUT ${base}.fatbin
      COMMAND ${EA_FATBINARY} -64 --compress-all --compress-mode=size --create=${base}.fatbin
        --image3=kind=elf,sm=${number},file=${base}.cubin
      DEPENDS ${base}.cubin
      COMMENT "fatbinary ${name} ${arch}"
      VERBATIM)
    string(MAKE_C_IDENTIFIER ${name}_${arch} symbol)
    set_property(GLOBAL APPEND PROPERTY EA_CUDA_IMAGES "${name}|${arch}|${symbol}|${base}.fatbin")
  endforeach()
endfunction()

function(ea_cuda_embed target)
  get_property(images GLOBAL PROPERTY EA_CUDA_IMAGES)
  set(blobs "")
  set(rows "")
  set(files "")
  foreach(image IN LISTS images)
    string(REPLACE "|" ";" image "${image}")
    list(GET image 0 name)
    list(GET image 1 arch)
    list(GET image 2 symbol)
    list(GET image 3 file)
    string(REGEX MATCH "[0-9]+" capability ${arch})
    if(arch MATCHES "a$")
      set(exact true)
    else()
      set(exact false)
    endif()
    string(APPEND blobs "EA_EMBED(${symbol}, \"${file}\")\n")
    string(APPEND rows "    {\"${name}\", ${capability}, ${exact}, ea_image_${symbol}},\n")
    list(APPEND files ${file})
  endforeach()
  list(LENGTH images count)
  if(count EQUAL 0)
    set(rows "    {0, 0, false, 0},\n") # C has no empty arrays
  endif()
  set(EA_IMAGE_BLOBS "${blobs}")
  set(EA_IMAGE_ROWS "${rows}")
  set(EA_IMAGE_COUNT ${count})
  set(EA_IMAGES_RECORD false)
  if(EA_TRACE AND count GREATER 0)
    set(EA_IMAGES_RECORD true)
  endif()
  configure_file(${CMAKE_CURRENT_SOURCE_DIR}/images.c.in ${EA_CUDA_DIR}/images.c @ONLY)
  set_property(SOURCE ${EA_CUDA_DIR}/images.c PROPERTY OBJECT_DEPENDS "${files}")
  add_library(${target} OBJECT ${EA_CUDA_DIR}/images.c)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${target} PRIVATE ea_build_flags)
endfunction()
