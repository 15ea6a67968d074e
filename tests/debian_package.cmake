# SPDX-License-Identifier: Apache-2.0
# Packs what BUILD installs into a .deb under WORK and looks inside.
file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${CPACK} -G DEB -B ${WORK} --config ${BUILD}/CPackConfig.cmake
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
file(GLOB package ${WORK}/*.deb)
if(NOT result EQUAL 0 OR NOT package)
  message(FATAL_ERROR "cpack: ${output}")
endif()
execute_process(COMMAND ${DPKG_DEB} --contents ${package} OUTPUT_VARIABLE contents COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${DPKG_DEB} --info ${package} OUTPUT_VARIABLE info COMMAND_ERROR_IS_FATAL ANY)
foreach(path usr/bin/packstone usr/include/packstone/kv_manager.hpp usr/include/packstone/packstone.h
    libpackstone_host.a libpackstone_c.so.0.1.0 packstone-config.cmake pkgconfig/packstone-c.pc)
  if(NOT contents MATCHES "${path}")
    message(SEND_ERROR "${path} is not in the package:\n${contents}")
  endif()
endforeach()
if(NOT info MATCHES "Package: packstone\n" OR NOT info MATCHES "Depends: [^\n]*libc6")
  message(SEND_ERROR "control:\n${info}")
endif()
message(STATUS "${package}")
