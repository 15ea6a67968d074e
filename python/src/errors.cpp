// SPDX-License-Identifier: Apache-2.0
#include "bindings.hpp"

#ifdef PACKSTONE_PYTHON_CUDA
#include "device.hpp"
#endif

namespace packstone::python {
namespace {

/// A shortage, as Python tells of one.
class Shortage : public std::exception {
 public:
  Shortage(Status status, const char* call)
      : status_(status), message_(std::string(call) + ": " + to_string(status)) {}
  [[nodiscard]] Status status() const { return status_; }
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  Status status_;
  std::string message_;
};

/// Classes of the module, which outlive the translator below with the module.
struct Classes {
  PyObject* error;
  PyObject* invalid_argument;
  PyObject* page_error;
  PyObject* sequence_error;
  PyObject* tree_error;
  PyObject* invariant_error;
  PyObject* out_of_pages;
  PyObject* out_of_sequences;
};

const char* name_of(PageError::Kind kind) {
  switch (kind) {
    case PageError::Kind::out_of_range:
      return "out_of_range";
    case PageError::Kind::reserved_page:
      return "reserved_page";
    case PageError::Kind::not_live:
      return "not_live";
    case PageError::Kind::foreign:
      return "foreign";
    case PageError::Kind::pinned:
      return "pinned";
    case PageError::Kind::duplicate:
      return "duplicate";
  }
  return "unknown";
}

void raise(PyObject* type, nb::object error) {
  PyErr_SetObject(type, error.ptr());
}

void translate(const std::exception_ptr& in_flight, void* payload) {
  const Classes& classes = *static_cast<const Classes*>(payload);
  const auto make = [](PyObject* type, const std::exception& fault) {
    return nb::handle(type)(fault.what());
  };
  try {
    std::rethrow_exception(in_flight);
  } catch (const Shortage& fault) {
    PyErr_SetString(
        fault.status() == Status::out_of_pages ? classes.out_of_pages : classes.out_of_sequences,
        fault.what());
  } catch (const PageError& fault) {
    nb::object error = make(classes.page_error, fault);
    error.attr("kind") = name_of(fault.kind());
    error.attr("page") = index_of(fault.page());
    error.attr("owner") = fault.owner();
    raise(classes.page_error, error);
  } catch (const SequenceError& fault) {
    nb::object error = make(classes.sequence_error, fault);
    error.attr("seq") = fault.seq();
    raise(classes.sequence_error, error);
  } catch (const TreeError& fault) {
    nb::object error = make(classes.tree_error, fault);
    error.attr("node") = fault.node();
    raise(classes.tree_error, error);
  } catch (const InvalidArgument& fault) {
    PyErr_SetString(classes.invalid_argument, fault.what());
  } catch (const InvariantError& fault) {
    PyErr_SetString(classes.invariant_error, fault.what());
  } catch (const Error& fault) {
    PyErr_SetString(classes.error, fault.what());
  }
}

PyObject* add_class(nb::module_& m, const char* name, const char* text, nb::handle bases) {
  const std::string full = std::string("packstone.") + name;
  PyObject* type = PyErr_NewExceptionWithDoc(full.c_str(), text, bases.ptr(), nullptr);
  if (type == nullptr) nb::raise_python_error();
  m.attr(name) = nb::borrow(type);
  return type;
}

}  // namespace

void require_ok(Status status, const char* call) {
  if (status != Status::ok) throw Shortage(status, call);
}

void bind_errors(nb::module_& m) {
  static Classes classes;
  classes.error = add_class(m, "Error", "Base of every error of packstone.", PyExc_Exception);
  const nb::handle base = classes.error;
  classes.invalid_argument =
      add_class(m, "InvalidArgument", "An argument outside its documented range; nothing changed.",
                nb::make_tuple(base, nb::handle(PyExc_ValueError)));
  classes.page_error = add_class(m, "PageError",
                                 "A page that the call may not touch; nothing changed.\n\n"
                                 "Attributes: page (int), owner (int, its tag), kind (str: "
                                 "out_of_range, reserved_page, not_live, foreign, pinned, "
                                 "duplicate).",
                                 base);
  classes.sequence_error = add_class(m, "SequenceError",
                                     "A handle that names no live sequence; nothing changed.\n\n"
                                     "Attribute: seq (SeqId).",
                                     base);
  classes.tree_error =
      add_class(m, "TreeError", "A draft tree that is no tree.\n\nAttribute: node (int).", base);
  classes.invariant_error =
      add_class(m, "InvariantError", "check() found a bug, or memory written over.", base);
  const nb::handle shortage = add_class(
      m, "Shortage", "Not enough of something; nothing was consumed. Evict, preempt.", base);
  classes.out_of_pages =
      add_class(m, "OutOfPages", "Fewer free pages than the call needs.", shortage);
  classes.out_of_sequences =
      add_class(m, "OutOfSequences", "Every sequence place is taken.", shortage);
  nb::register_exception_translator(translate, &classes);

#ifdef PACKSTONE_PYTHON_CUDA
  static DeviceClasses device;
  device.cuda_error = add_class(m, "CudaError",
                                "A call of the CUDA runtime failed.\n\nAttribute: code (int, "
                                "cudaError_t).",
                                base);
  device.unsupported_device =
      add_class(m, "UnsupportedDevice", "No device, or none that this build has code for.", base);
  // Translators are asked from the last to the first: these are Errors too.
  nb::register_exception_translator(translate_device_error, &device);
#endif
}

}  // namespace packstone::python
