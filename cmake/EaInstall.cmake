# What an installation holds: header, shared and static library, pkg-config file, CMake
# package. (The command installs itself and its man page and completion, in cli/.)
include(CMakePackageConfigHelpers)

install(TARGETS extattn extattn_static EXPORT extattn
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES include/extattn.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE NOTICE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# CMake: find_package(extattn) gives extattn::extattn and extattn::static.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/extattn)
install(EXPORT extattn NAMESPACE extattn:: FILE extattn-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/extattn-config.cmake.in extattn-config.cmake INSTALL_DESTINATION ${package_dir})
# While the major version is 0, a minor version may break what was compiled before; the soname says the same.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
else()
  set(compatibility SameMajorVersion)
endif()
write_basic_package_version_file(extattn-config-version.cmake COMPATIBILITY ${compatibility})
install(FILES ${PROJECT_BINARY_DIR}/extattn-config.cmake ${PROJECT_BINARY_DIR}/extattn-config-version.cmake
  DESTINATION ${package_dir})

# pkg-config: paths relative to the file itself, so an installation may be moved.
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH EA_PC_PREFIX /${pkgconfig_dir} /)
string(REGEX REPLACE "/$" "" EA_PC_PREFIX "${EA_PC_PREFIX}")
list(TRANSFORM EA_STATIC_LIBS PREPEND -l OUTPUT_VARIABLE EA_PC_LIBS_PRIVATE)
list(JOIN EA_PC_LIBS_PRIVATE " " EA_PC_LIBS_PRIVATE)
configure_file(cmake/extattn.pc.in extattn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/extattn.pc DESTINATION ${pkgconfig_dir})
