# The CUDA backend's kernels as src/plan/kernel_list.h has them.
#
#   EA_KERNEL_LIST   a list of NAME|SOURCE|ARCHS|DEFINES: the entry point, the source in src/cuda/kernels, its
#                    architectures ("all", or some separated by spaces), what it is compiled with (separated by spaces)
#
# An attention kernel, a row of the header, is two of them: for bf16 and for f16.

set(header ${PROJECT_SOURCE_DIR}/src/plan/kernel_list.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
file(READ ${header} text) # whose lines end in backslashes: no list of them
string(REGEX MATCHALL "\n  [A-Z_]+\\([^()]+\\)" rows "${text}")
set(EA_KERNEL_LIST "")
foreach(row IN LISTS rows)
  if(NOT row MATCHES "^\n  ([A-Z_]+)\\(([a-z0-9_]+), \"([a-z0-9_/.]+)\", \"([a-z0-9_ ]+)\", (.*)\\)$")
    message(FATAL_ERROR "${header}: not a kernel's row:${row}")
  endif()
  set(kind ${CMAKE_MATCH_1})
  set(name ${CMAKE_MATCH_2})
  set(images "${CMAKE_MATCH_3}|${CMAKE_MATCH_4}")
  string(REGEX REPLACE "^\"(.*)\"$" "\\1" rest "${CMAKE_MATCH_5}")
  if(kind STREQUAL "OTHER")
    list(APPEND EA_KERNEL_LIST "${name}|${images}|${rest}")
    continue()
  endif()
  string(REGEX MATCH "^(HOPPER|PORTABLE)" family ${kind})
  string(TOLOWER ${family} family)
  foreach(type bf16 f16)
    string(TOUPPER ${type} TYPE)
    list(APPEND EA_KERNEL_LIST "${family}_${name}_${type}|${images}|EA_SHAPE=${name} EA_TYPE_${TYPE}")
  endforeach()
endforeach()
list(LENGTH EA_KERNEL_LIST count)
if(count LESS 2)
  message(FATAL_ERROR "${header}: no kernel was found")
endif()

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
