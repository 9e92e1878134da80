# The CUDA backend's kernels as src/plan/kernel_list.h has them.
#
#   EA_KERNEL_LIST   a list of NAME|SOURCE|ARCHS|DEFINES: the entry point, the source in src/cuda/kernels, its
#                    architectures ("all", or some separated by spaces), what it is compiled with (separated by spaces)
#
# An attention kernel, a row of the header, is two of them: for bf16 and for f16.

function(ea_read_kernel_list variable)
  set(header ${PROJECT_SOURCE_DIR}/src/plan/kernel_list.h)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
  file(READ ${header} text) # whose lines end in backslashes: no list of them
  string(REGEX MATCHALL "\n  [A-Z_]+\\([^()]+\\)" rows "${text}")
  set(list "")
  foreach(row IN LISTS rows)
    if(NOT row MATCHES "^\n  ([A-Z_]+)\\(([a-z0-9_]+), \"([a-z0-9_/.]+)\", \"([a-z0-9_ ]+)\", (.*)\\)$")
      message(FATAL_ERROR "${header}: not a kernel's row:${row}")
    endif()
    set(kind ${CMAKE_MATCH_1})
    set(name ${CMAKE_MATCH_2})
    set(images "${CMAKE_MATCH_3}|${CMAKE_MATCH_4}")
    string(REGEX REPLACE "^\"(.*)\"$" "\\1" rest "${CMAKE_MATCH_5}")
    if(kind STREQUAL "OTHER")
      list(APPEND list "${name}|${images}|${rest}")
      continue()
    endif()
    string(REGEX MATCH "^(HOPPER|PORTABLE)" family ${kind})
    string(TOLOWER ${family} family)
    foreach(type bf16 f16)
      string(TOUPPER ${type} TYPE)
      list(APPEND list "${family}_${name}_${type}|${images}|EA_SHAPE=${name} EA_TYPE_${TYPE}")
    endforeach()
  endforeach()
  if(list STREQUAL "")
    message(FATAL_ERROR "${header}: no kernel was found")
  endif()
  set(${variable} "${list}" PARENT_SCOPE)
endfunction()
ea_read_kernel_list(EA_KERNEL_LIST)

# ea_kernel_row(ROW): sets kernel_name, kernel_source, kernel_archs (empty: all) and kernel_defines.
macro(ea_kernel_row row)
  string(REPLACE "|" ";" kernel_fields "${row}|")
  list(GET kernel_fields 0 kernel_name)
  list(GET kernel_fields 1 kernel_source)
  list(GET kernel_fields 2 kernel_archs)
  list(GET kernel_fields 3 kernel_defines)
  string(REPLACE " " ";" kernel_archs "${kernel_archs}")
  string(REPLACE " " ";" kernel_defines "${kernel_defines}")
  if(kernel_archs STREQUAL "all")
    set(kernel_archs "")
  endif()
endmacro()

# Tables of images with names and without code, for drivers that run none (tests/emulator, tests/driver). One takes the
# place of the library's own in the static library.
#
#   ea_name_images(VARIABLE NAME ARCH...)     appends a kernel's rows to a list
#   ea_write_image_names(FILE RECORD ROW...)  RECORD: true or false, what ea_images_record says
function(ea_name_images variable name)
  set(rows ${${variable}})
  foreach(arch IN LISTS ARGN)
    string(REGEX MATCH "[0-9]+" capability ${arch})
    set(exact false)
    if(arch MATCHES "a$")
      set(exact true)
    endif()
    list(APPEND rows "    {\"${name}\", ${capability}, ${exact}, no_image},\n")
  endforeach()
  set(${variable} ${rows} PARENT_SCOPE)
endfunction()

function(ea_write_image_names file record)
  list(LENGTH ARGN count)
  list(JOIN ARGN "" rows)
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT [[
/* Written by ea_write_image_names (cmake/EaKernelList.cmake): the names of images, for a driver that runs none. */
#include "cuda/device.h"

static const unsigned char no_image[16] = {0};
const ea_image ea_images[] = {
@rows@};
const int32_t ea_image_count = @count@;
const bool ea_images_record = @record@;
]])
endfunction()
