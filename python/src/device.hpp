// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the extension has besides when it was built with the CUDA half.

#include "bindings.hpp"

#include <exception>

namespace packstone::python {

/// Classes of the module, for the translator.
struct DeviceClasses {
  PyObject* cuda_error;
  PyObject* unsupported_device;
};
/// Of type nanobind's translators: sets the Python error for an error of the CUDA half.
void translate_device_error(const std::exception_ptr& in_flight, void* payload);

void bind_device(nb::module_& m);

}  // namespace packstone::python
