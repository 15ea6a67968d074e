# SPDX-License-Identifier: Apache-2.0
# The C library, and all that is installed: headers, libraries, the CMake package, pkg-config files, the Debian package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME library)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/packstone)

if(EXISTS ${PROJECT_SOURCE_DIR}/src/c_api/CMakeLists.txt)
  add_subdirectory(src/c_api)
endif()

if(PACKSTONE_TESTS)
  add_subdirectory(examples)
endif()
if(PACKSTONE_PYTHON)
  add_subdirectory(python)
endif()

install(DIRECTORY include/packstone DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h" PATTERN "cuda" EXCLUDE)
# Assertions name their file: by its place in the tree, not on the machine that built it.
foreach(library packstone_host packstone_cuda)
  if(TARGET ${library})
    target_compile_options(${library} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>
      # Position-independent code may be replaced from outside, so g++ would inline no function of ours in another
      # without this: a release of pages takes nearly twice as long.
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-semantic-interposition>)
  endif()
endforeach()
# Two export sets, so that a consumer without a CUDA toolkit never meets a target that names one.
install(TARGETS packstone_host EXPORT packstone-host-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT packstone-host-targets NAMESPACE packstone:: DESTINATION ${package_dir})
if(PACKSTONE_HAS_CUDA)
  install(DIRECTORY include/packstone/cuda DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/packstone
    FILES_MATCHING PATTERN "*.hpp")
  install(TARGETS packstone_cuda EXPORT packstone-cuda-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT packstone-cuda-targets NAMESPACE packstone:: DESTINATION ${package_dir})
endif()
if(TARGET packstone_c)
  install(TARGETS packstone_c EXPORT packstone-c-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT packstone-c-targets NAMESPACE packstone:: DESTINATION ${package_dir})
endif()
if(TARGET packstone_command)
  install(TARGETS packstone_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)

configure_package_config_file(cmake/packstone-config.cmake.in packstone-config.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(packstone-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/packstone-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/packstone-config-version.cmake DESTINATION ${package_dir})

# A .pc file finds its tree from where it lies, so that an install tree can be moved.
file(RELATIVE_PATH package_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" package_up "${package_up}")
set(pc_files packstone.pc)
if(TARGET packstone_c)
  list(APPEND pc_files packstone-c.pc)
endif()
if(PACKSTONE_HAS_CUDA)
  list(APPEND pc_files packstone-cuda.pc)
endif()
foreach(file ${pc_files})
  configure_file(cmake/${file}.in ${file} @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${file} DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME packstone)
set(CPACK_PACKAGE_VENDOR "packstone")
set(CPACK_PACKAGE_CONTACT "packstone developers <packstone@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
