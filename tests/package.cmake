# SPDX-License-Identifier: Apache-2.0
# Tests of what is installed, from the outside: projects of their own that find the package in an install tree.
function(add_consumer_test name)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}/${name}
    -DWORK=${CMAKE_CURRENT_BINARY_DIR}/${name} -DCXX=${CMAKE_CXX_COMPILER} -DCC=${PACKSTONE_CC} "-DPROGRAMS=${ARGN}"
    -P ${CMAKE_CURRENT_SOURCE_DIR}/consumer/run.cmake)
  set_tests_properties(${name} PROPERTIES LABELS package)
endfunction()

# BP-03.
add_test(NAME toolkit_test COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DWORK=${CMAKE_CURRENT_BINARY_DIR}/toolkit
  -P ${CMAKE_CURRENT_SOURCE_DIR}/toolkit_test.cmake)
set_tests_properties(toolkit_test PROPERTIES LABELS package)

find_program(PACKSTONE_CC NAMES gcc clang cc)
add_consumer_test(consumer consumer consumer_pc)
add_consumer_test(consumer_c consumer_c)
if(PACKSTONE_HAS_CUDA)
  add_consumer_test(consumer_cuda consumer_cuda)
endif()

# The C ABI, by a C compiler that is held to the standard.
enable_language(C)
add_executable(c_api_test c_api_test.c)
set_target_properties(c_api_test PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
target_compile_options(c_api_test PRIVATE -Wall -Wextra -Werror -pedantic -pedantic-errors -Wundef)
target_link_libraries(c_api_test PRIVATE packstone_c m)
if(PACKSTONE_SANITIZE)
  # The run-time library, that of C++ with it, must come before the sanitized library that needs it.
  target_link_options(c_api_test PRIVATE -fsanitize=${PACKSTONE_SANITIZE})
  set_target_properties(c_api_test PROPERTIES LINKER_LANGUAGE CXX)
endif()
add_test(NAME c_api_test COMMAND c_api_test)
set_tests_properties(c_api_test PROPERTIES LABELS host)
add_test(NAME c_api_symbols COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DLIBRARY=$<TARGET_FILE:packstone_c>
  -DPROGRAM=$<TARGET_FILE:c_api_test> -P ${CMAKE_CURRENT_SOURCE_DIR}/c_api_symbols.cmake)
set_tests_properties(c_api_symbols PROPERTIES LABELS package)

# The Debian package has what an install has, and says what it needs.
find_program(PACKSTONE_DPKG_DEB dpkg-deb)
if(PACKSTONE_DPKG_DEB AND TARGET packstone_command)
  add_test(NAME debian_package COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR}
    -DWORK=${CMAKE_CURRENT_BINARY_DIR}/debian -DCPACK=${CMAKE_CPACK_COMMAND} -DDPKG_DEB=${PACKSTONE_DPKG_DEB}
    -P ${CMAKE_CURRENT_SOURCE_DIR}/debian_package.cmake)
  set_tests_properties(debian_package PROPERTIES LABELS package)
endif()

# The wheel and its tests, where a virtual environment and a package index can be had; else skipped, with the reason.
if(NOT PACKSTONE_SANITIZE)
  add_test(NAME python COMMAND ${PROJECT_SOURCE_DIR}/scripts/python-test)
  set_tests_properties(python PROPERTIES LABELS package SKIP_RETURN_CODE 77
    ENVIRONMENT PACKSTONE_PYTHON_DIR=${CMAKE_CURRENT_BINARY_DIR}/python)
endif()

add_executable(runtime_test runtime/runtime_test.cpp)
target_include_directories(runtime_test PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(runtime_test PRIVATE packstone_runtime packstone_flags GTest::gmock_main)
add_test(NAME runtime_test COMMAND runtime_test)
set_tests_properties(runtime_test PROPERTIES LABELS host)
if(PACKSTONE_HAS_CUDA)
  add_executable(gpu_runtime_test runtime/runtime_test.cpp)
  target_include_directories(gpu_runtime_test PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(gpu_runtime_test PRIVATE RUNTIME_TEST_DEVICE)
  target_link_libraries(gpu_runtime_test PRIVATE packstone_runtime packstone_flags GTest::gmock_main)
  add_test(NAME gpu_runtime_test COMMAND gpu_runtime_test)
  set_tests_properties(gpu_runtime_test PROPERTIES LABELS gpu SKIP_REGULAR_EXPRESSION "no CUDA device")
endif()
add_test(NAME embed_example COMMAND embed_example)
set_tests_properties(embed_example PROPERTIES LABELS host
  PASS_REGULAR_EXPRESSION "copy 4 tokens of page [0-9]+ to [0-9]+\ntoken 500 goes to slot [0-9]+; 990 pages are left")
# The same example as a project of its own against an install tree, as the README says.
if(NOT PACKSTONE_SANITIZE)
  add_test(NAME install_tree COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR}
    --prefix ${CMAKE_CURRENT_BINARY_DIR}/install_tree --component library)
  set_tests_properties(install_tree PROPERTIES LABELS package FIXTURES_SETUP install_tree)
  add_test(NAME installed_example COMMAND ${CMAKE_CTEST_COMMAND}
    --build-and-test ${PROJECT_SOURCE_DIR}/examples/consumer ${CMAKE_CURRENT_BINARY_DIR}/installed_example
    --build-generator ${CMAKE_GENERATOR} --build-options -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
    -DCMAKE_PREFIX_PATH=${CMAKE_CURRENT_BINARY_DIR}/install_tree --test-command consumer)
  set_tests_properties(installed_example PROPERTIES LABELS package FIXTURES_REQUIRED install_tree
    PASS_REGULAR_EXPRESSION "990 pages are left")
endif()
add_test(NAME quoted_example COMMAND ${CMAKE_COMMAND} -DEXAMPLE=${PROJECT_SOURCE_DIR}/examples/embed.cpp
  "-DDOCUMENTS=${PROJECT_SOURCE_DIR}/docs/embedding.md;${PROJECT_SOURCE_DIR}/README.md"
  -P ${CMAKE_CURRENT_SOURCE_DIR}/quoted_example.cmake)
set_tests_properties(quoted_example PROPERTIES LABELS host)
