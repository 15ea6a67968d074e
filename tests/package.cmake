# SPDX-License-Identifier: Apache-2.0
# Tests of what is installed, from the outside: projects of their own that find the package in an install tree.
function(add_consumer_test name)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}/${name}
    -DWORK=${CMAKE_CURRENT_BINARY_DIR}/${name} -DCXX=${CMAKE_CXX_COMPILER} -DCC=${PACKSTONE_CC} "-DPROGRAMS=${ARGN}"
    -P ${CMAKE_CURRENT_SOURCE_DIR}/consumer/run.cmake)
  set_tests_properties(${name} PROPERTIES LABELS package)
endfunction()

find_program(PACKSTONE_CC NAMES gcc clang cc)
add_consumer_test(consumer consumer consumer_pc)
if(PACKSTONE_HAS_CUDA)
  add_consumer_test(consumer_cuda consumer_cuda)
endif()
