// SPDX-License-Identifier: Apache-2.0
#include "bindings.hpp"

#ifdef PACKSTONE_PYTHON_CUDA
#include "device.hpp"
#endif

NB_MODULE(_packstone, m) {
  using namespace packstone::python;
  m.attr("__version__") = PACKSTONE_PYTHON_VERSION;
  bind_errors(m);
  bind_page_allocator(m);
  bind_kv_manager(m);
  bind_slot_allocator(m);
  bind_verify(m);
#ifdef PACKSTONE_PYTHON_CUDA
  bind_device(m);
  m.attr("has_cuda") = true;
#else
  m.attr("has_cuda") = false;
#endif
}
