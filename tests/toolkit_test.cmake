# SPDX-License-Identifier: Apache-2.0
# BP-03: compiler and headers of different minor versions give one line at configure time that names both.
#   cmake -DSOURCE=<root> -DWORK=<folder> -P toolkit_test.cmake
include(${SOURCE}/cmake/toolkit.cmake)
if(DEFINED COMPILER)
  packstone_require_one_toolkit(${COMPILER} ${HEADERS} /opt/cuda/include)
  return()
endif()

function(expect compiler headers good)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${SOURCE} -DCOMPILER=${compiler} -DHEADERS=${headers} -P ${CMAKE_CURRENT_LIST_FILE}
    RESULT_VARIABLE status ERROR_VARIABLE error)
  if(good AND NOT status EQUAL 0)
    message(FATAL_ERROR "${compiler} with ${headers} was refused: ${error}")
  elseif(NOT good)
    string(REGEX REPLACE "[ \n]+" " " error "${error}")
    string(FIND "${error}" "nvcc is of CUDA ${compiler}, but the headers in /opt/cuda/include are of CUDA ${headers}" at)
    if(status EQUAL 0 OR at EQUAL -1)
      message(FATAL_ERROR "${compiler} with ${headers}: status ${status}, '${error}'")
    endif()
  endif()
endfunction()

expect(13.0.88 13.0.88 TRUE)
expect(13.0.88 13.0.96 TRUE)
expect(13.0.88 13.1.48 FALSE)
expect(12.8.93 13.0.88 FALSE)
expect(13.1.48 13.10.1 FALSE)

file(WRITE ${WORK}/cuda_runtime_api.h "#ifndef X\n#define CUDART_VERSION  13010\n#endif\n")
packstone_headers_version(version ${WORK})
if(NOT version STREQUAL "13.1")
  message(FATAL_ERROR "CUDART_VERSION 13010 read as '${version}'")
endif()
