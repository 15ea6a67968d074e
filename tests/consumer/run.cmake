# SPDX-License-Identifier: Apache-2.0
# Installs BUILD into a fresh prefix under WORK, moves it, then configures, builds and runs the consumer SOURCE
# against it from a copy outside of the source tree. PROGRAMS: what to run.
foreach(variable BUILD SOURCE WORK CXX)
  if(NOT ${variable})
    message(FATAL_ERROR "${variable} is not set")
  endif()
endforeach()
file(REMOVE_RECURSE ${WORK})

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

step(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/installed --component library)
# Nothing in the package may remember where it was installed.
file(RENAME ${WORK}/installed ${WORK}/moved)
file(COPY ${SOURCE}/ DESTINATION ${WORK}/consumer)
# One translation unit that includes every header the package has brought, but those of the device half.
file(GLOB headers RELATIVE ${WORK}/moved/include ${WORK}/moved/include/packstone/*.h*)
if(NOT headers)
  message(FATAL_ERROR "no headers were installed")
endif()
list(TRANSFORM headers REPLACE "(.+)" "#include <\\1>\n")
string(JOIN "" text ${headers})
file(WRITE ${WORK}/consumer/packstone/all_headers.hpp "${text}")

file(GLOB_RECURSE pc_files ${WORK}/moved/*/packstone.pc)
list(GET pc_files 0 pc_file)
get_filename_component(pc_dir ${pc_file} DIRECTORY)
set(ENV{PKG_CONFIG_PATH} ${pc_dir})
step(${CMAKE_COMMAND} -S ${WORK}/consumer -B ${WORK}/build -G Ninja -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_PREFIX_PATH=${WORK}/moved -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_C_COMPILER=${CC}
  "-DCMAKE_CXX_FLAGS=-I${WORK}/consumer")
step(${CMAKE_COMMAND} --build ${WORK}/build)
# A component that this install lacks is refused with the reason.
file(GLOB_RECURSE device_half ${WORK}/moved/*/packstone-cuda-targets.cmake)
if(NOT device_half)
  file(WRITE ${WORK}/lacking/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)\nproject(lacking LANGUAGES CXX)\n"
    "find_package(packstone 0.1 REQUIRED COMPONENTS packstone)\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${WORK}/lacking -B ${WORK}/lacking/build -DCMAKE_PREFIX_PATH=${WORK}/moved
    -DCMAKE_CXX_COMPILER=${CXX} RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  string(FIND "${output}" "built without CUDA" at)
  if(result EQUAL 0 OR at EQUAL -1)
    message(FATAL_ERROR "a lacking component gave status ${result} and: ${output}")
  endif()
endif()
foreach(program ${PROGRAMS})
  if(EXISTS ${WORK}/build/${program})
    step(${WORK}/build/${program})
    message(STATUS "${output}")
  elseif(NOT program MATCHES "_pc$")
    message(FATAL_ERROR "${program} was not built")
  endif()
endforeach()
