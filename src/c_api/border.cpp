// SPDX-License-Identifier: Apache-2.0
#include "border.hpp"

#ifdef PACKSTONE_C_CUDA
#include <packstone/cuda/error.hpp>
#endif

#include <new>

namespace packstone::c_api {
namespace {

struct Remembered {
  packstone_error error{.size = sizeof(packstone_error),
                        .status = PACKSTONE_OK,
                        .page = -1,
                        .owner = 0,
                        .node = -1,
                        .seq = 0,
                        .message = ""};
  std::string text;
};

Remembered& remembered() {
  thread_local Remembered value;
  return value;
}

packstone_error blank(packstone_status status) {
  packstone_error error = Remembered{}.error;
  error.status = status;
  return error;
}

packstone_status remember(packstone_error error, const char* message) noexcept {
  Remembered& last = remembered();
  try {
    last.text = message;
    error.message = last.text.c_str();
  } catch (...) {
    error.message = "no memory for the message";
  }
  last.error = error;
  return error.status;
}

}  // namespace

packstone_status fail(packstone_status status, const char* message) noexcept {
  return remember(blank(status), message);
}

packstone_status note_exception() noexcept {
  try {
    throw;
  } catch (const PageError& fault) {
    packstone_error error = blank(PACKSTONE_PAGE_ERROR);
    error.page = index_of(fault.page());
    error.owner = fault.owner();
    return remember(error, fault.what());
  } catch (const SequenceError& fault) {
    packstone_error error = blank(PACKSTONE_SEQUENCE_ERROR);
    error.seq = seq_of(fault.seq());
    return remember(error, fault.what());
  } catch (const TreeError& fault) {
    packstone_error error = blank(PACKSTONE_TREE_ERROR);
    error.node = fault.node();
    return remember(error, fault.what());
  } catch (const InvalidArgument& fault) {
    return fail(PACKSTONE_INVALID_ARGUMENT, fault.what());
  } catch (const InvariantError& fault) {
    return fail(PACKSTONE_INVARIANT_ERROR, fault.what());
#ifdef PACKSTONE_C_CUDA
  } catch (const cuda::CudaError& fault) {
    return fail(PACKSTONE_CUDA_ERROR, fault.what());
  } catch (const cuda::UnsupportedDevice& fault) {
    return fail(PACKSTONE_UNSUPPORTED_DEVICE, fault.what());
#endif
  } catch (const std::bad_alloc&) {
    return fail(PACKSTONE_OUT_OF_HOST_MEMORY, "out of host memory");
  } catch (const std::length_error&) {
    return fail(PACKSTONE_OUT_OF_HOST_MEMORY, "a size passes what host memory can hold");
  } catch (const std::exception& fault) {
    return fail(PACKSTONE_INTERNAL_ERROR, fault.what());
  } catch (...) {
    return fail(PACKSTONE_INTERNAL_ERROR, "an exception of an unknown type");
  }
}

}  // namespace packstone::c_api

using namespace packstone::c_api;

const char* packstone_version(void) {
  return PACKSTONE_C_VERSION;
}

int packstone_has_cuda(void) {
#ifdef PACKSTONE_C_CUDA
  return 1;
#else
  return 0;
#endif
}

const char* packstone_status_name(packstone_status status) {
  switch (status) {
    case PACKSTONE_OK:
      return "ok";
    case PACKSTONE_OUT_OF_PAGES:
      return "out of pages";
    case PACKSTONE_OUT_OF_SEQUENCES:
      return "out of sequences";
    case PACKSTONE_INVALID_ARGUMENT:
      return "invalid argument";
    case PACKSTONE_PAGE_ERROR:
      return "page error";
    case PACKSTONE_SEQUENCE_ERROR:
      return "sequence error";
    case PACKSTONE_TREE_ERROR:
      return "tree error";
    case PACKSTONE_INVARIANT_ERROR:
      return "invariant error";
    case PACKSTONE_OUT_OF_HOST_MEMORY:
      return "out of host memory";
    case PACKSTONE_CUDA_ERROR:
      return "CUDA error";
    case PACKSTONE_UNSUPPORTED_DEVICE:
      return "unsupported device";
    case PACKSTONE_BUFFER_TOO_SMALL:
      return "buffer too small";
    case PACKSTONE_INTERNAL_ERROR:
      return "internal error";
    default:
      return "unknown status";
  }
}

packstone_status packstone_last_error(packstone_error* out) {
  // Copied first: a bad `out` is an error of its own, which replaces what was asked for.
  const packstone_error last = remembered().error;
  return guarded([&] {
    write_struct(last, out, "out");
    return PACKSTONE_OK;
  });
}

const char* packstone_last_error_message(void) {
  return remembered().error.message;
}
