# SPDX-License-Identifier: Apache-2.0
# DOCUMENTS that quote EXAMPLE quote it as it is, but for its licence line. The first must; another may quote nothing.
file(READ ${EXAMPLE} text)
string(REGEX REPLACE "^//[^\n]*\n" "" text "${text}")
set(first TRUE)
foreach(document ${DOCUMENTS})
  file(READ ${document} page)
  string(FIND "${page}" "```cpp\n${text}```" place)
  string(FIND "${page}" "#include <packstone/kv_manager.hpp>" quoted)
  if(place EQUAL -1 AND (first OR NOT quoted EQUAL -1))
    message(SEND_ERROR "${document} does not quote ${EXAMPLE} word by word")
  endif()
  set(first FALSE)
endforeach()
