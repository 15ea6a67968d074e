# SPDX-License-Identifier: Apache-2.0
# A compiler of one toolkit with the headers of another fails deep inside the headers; here it is one line.

# packstone_require_one_toolkit(COMPILER_VERSION HEADERS_VERSION HEADERS): both of one minor version, as in 13.0.
function(packstone_require_one_toolkit compiler headers where)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" compiler_minor "${compiler}")
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" headers_minor "${headers}")
  if(NOT compiler_minor STREQUAL headers_minor)
    message(FATAL_ERROR
      "packstone: nvcc is of CUDA ${compiler}, but the headers in ${where} are of CUDA ${headers}; "
      "set CUDAToolkit_ROOT to the compiler's toolkit")
  endif()
endfunction()

# packstone_headers_version(OUT DIRECTORY): the version that cuda_runtime_api.h there says of itself, as 13.0.
function(packstone_headers_version out directory)
  file(STRINGS ${directory}/cuda_runtime_api.h line REGEX "^#define CUDART_VERSION +[0-9]+")
  string(REGEX MATCH "[0-9]+$" number "${line}")
  math(EXPR major "${number} / 1000")
  math(EXPR minor "${number} % 1000 / 10")
  set(${out} ${major}.${minor} PARENT_SCOPE)
endfunction()
