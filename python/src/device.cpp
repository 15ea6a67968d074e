// SPDX-License-Identifier: Apache-2.0
// The device half: attention, merges and page moves on tensors in device memory, in order of the
// stream that the caller names. Nothing here synchronises or allocates device memory for a call.
#include "device.hpp"

#include "verify_call.hpp"

#include <packstone/cuda/attention.hpp>
#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/device_pool.hpp>
#include <packstone/cuda/error.hpp>

namespace packstone::python {
namespace {

using Mutable = nb::ndarray<>;

constexpr int kCuda = nb::device::cuda::value;

/// Makes a device current while it lives: objects of the library belong to one.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    PACKSTONE_CUDA_CHECK(cudaGetDevice(&before_));
    if (before_ != device) PACKSTONE_CUDA_CHECK(cudaSetDevice(device));
  }
  ~OnDevice() { (void)cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_{0};
};

cudaStream_t stream_of(std::uintptr_t stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}

FloatType float_type(const Tensor& tensor, const char* name) {
  switch (element_of(tensor)) {
    case Element::bf16:
      return FloatType::bf16;
    case Element::fp16:
      return FloatType::fp16;
    case Element::fp32:
      return FloatType::fp32;
    default:
      throw InvalidArgument(std::string(name) + " is neither bf16, float16 nor float32");
  }
}

bool is_float32(const Tensor& tensor) {
  return element_of(tensor) == Element::fp32;
}

void require_shape(const Tensor& tensor, std::initializer_list<std::int64_t> shape,
                   const char* name) {
  bool same = tensor.ndim() == shape.size();
  std::size_t d = 0;
  for (const std::int64_t extent : shape) {
    same = same && static_cast<std::int64_t>(tensor.shape(d++)) == extent;
  }
  if (!same) throw InvalidArgument(std::string(name) + " has another shape than the call needs");
}

/// The call and the tensors that it reads and writes, which it keeps.
struct VerifyCall {
  VerifyParams params;
  HostView extents;
  int device{0};
  std::vector<Tensor> kept;
};

void set_output(VerifyCall& call, const Tensor& out, const std::optional<Mutable>& lse) {
  VerifyParams& params = call.params;
  require_on(out, kCuda, call.device, "out");
  require_dims(out, 3, "out");
  require_shape(out, {params.tokens, params.heads, params.head_dim_v}, "out");
  params.output = {.out = const_cast<void*>(out.data()),
                   .type = float_type(out, "out"),
                   .stride_token = out.stride(0) * bytes_per(out),
                   .stride_head = out.stride(1) * bytes_per(out)};
  if (!lse) return;
  const Tensor given(*lse);
  require_on(given, kCuda, call.device, "lse");
  require_dims(given, 2, "lse");
  require_shape(given, {params.tokens, params.heads}, "lse");
  if (!is_float32(given)) throw InvalidArgument("lse is not float32");
  params.output.lse = static_cast<float*>(lse->data());
  params.output.lse_stride_token = std::int64_t{4} * given.stride(0);
}

void make_call(VerifyCall* self, const VerifyArguments& arguments, const Mutable& out,
               const std::optional<Mutable>& lse) {
  const VerifyArguments& a = arguments;
  if (a.q.device_type() != kCuda) throw InvalidArgument("q is not on a CUDA device");
  VerifyCall call{.params = verify_params(a),
                  .extents = extents_of(a),
                  .device = a.q.device_id(),
                  .kept = {a.q, a.k, a.table, a.prefix_lens, a.q_indptr, Tensor(out)}};
  for (const std::optional<Tensor>& each : {a.v, a.table_indptr, a.parents, a.words, a.sparse}) {
    if (each) call.kept.push_back(*each);
  }
  if (lse) call.kept.emplace_back(*lse);
  set_output(call, Tensor(out), lse);
  new (self) VerifyCall(std::move(call));
}

struct Attention {
  cuda::TreeVerify verify;
};

void require_same_device(const Attention& self, const VerifyCall& call) {
  if (self.verify.device().device != call.device) {
    throw InvalidArgument("the call is on CUDA device " + std::to_string(call.device) +
                          ", this object on " + std::to_string(self.verify.device().device));
  }
}

void run(const Attention& self, const VerifyCall& call, const Mutable& workspace,
         std::uintptr_t stream, bool reuse_schedule) {
  require_same_device(self, call);
  const Tensor scratch(workspace);
  require_on(scratch, kCuda, call.device, "workspace");
  require_dims(scratch, 1, "workspace");
  const auto bytes = static_cast<std::int64_t>(workspace.size()) * bytes_per(scratch);
  const nb::gil_scoped_release unlocked;
  const OnDevice here(call.device);
  self.verify.run(call.params, workspace.data(), bytes, stream_of(stream), call.extents,
                  reuse_schedule ? ScheduleUse::reuse : ScheduleUse::make);
}

void merge(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b,
           const Mutable& out, const std::optional<Mutable>& lse, std::uintptr_t stream) {
  if (out_a.device_type() != kCuda) throw InvalidArgument("out_a is not on a CUDA device");
  const int device = out_a.device_id();
  require_dims(out_a, 2, "out_a");
  const auto rows = static_cast<std::int64_t>(out_a.shape(0));
  const auto dim = static_cast<std::int64_t>(out_a.shape(1));
  const auto require = [&](const Tensor& tensor, bool values, const char* name) {
    require_on(tensor, kCuda, device, name);
    require_dims(tensor, values ? 2 : 1, name);
    if (values) require_shape(tensor, {rows, dim}, name);
    if (!values) require_shape(tensor, {rows}, name);
    if (values ? tensor.dtype() != out_a.dtype() : !is_float32(tensor)) {
      throw InvalidArgument(std::string(name) + " has another type than the call needs");
    }
    if (values && rows > 1 && tensor.stride(0) != dim) {
      throw InvalidArgument(std::string(name) + " is not contiguous");
    }
  };
  require(out_a, true, "out_a");
  require(out_b, true, "out_b");
  require(Tensor(out), true, "out");
  require(lse_a, false, "lse_a");
  require(lse_b, false, "lse_b");
  if (lse) require(Tensor(*lse), false, "lse");
  const cuda::MergeParams params{.rows = rows,
                                 .dim = static_cast<std::int32_t>(dim),
                                 .type = float_type(out_a, "out_a"),
                                 .merged_out = out.data(),
                                 .merged_lse = lse ? static_cast<float*>(lse->data()) : nullptr};
  const auto floats = [](const Tensor& tensor) { return static_cast<const float*>(tensor.data()); };
  const nb::gil_scoped_release unlocked;
  const OnDevice here(device);
  cuda::merge_states({.out = out_a.data(), .lse = floats(lse_a)},
                     {.out = out_b.data(), .lse = floats(lse_b)}, params, stream_of(stream));
}

/// A compactor over tensors of the caller, which it keeps.
class TensorCompactor {
 public:
  struct Parts {
    int device{0};
    PoolLayout layout;
    PageCount pages{0};
    std::vector<cuda::WrappedPlane> planes;
    std::vector<cuda::PatchedArray> arrays;
    std::vector<Mutable> kept;
  };
  TensorCompactor(Parts&& parts, std::int64_t moves_max)
      : device_(parts.device),
        kept_(std::move(parts.kept)),
        pool_(parts.layout, parts.pages, parts.planes),
        pools_{&pool_},
        compactor_(pools_, parts.arrays, {.moves_max = moves_max}) {}

  [[nodiscard]] bool compact(const Ints& from, const Ints& to, std::uintptr_t stream) {
    return step(from, to, [&](std::span<const PageMove> moves) {
      return compactor_.compact(moves, stream_of(stream));
    });
  }
  [[nodiscard]] bool copy(const Ints& from, const Ints& to, std::uintptr_t stream) {
    return step(from, to, [&](std::span<const PageMove> moves) {
      return compactor_.copy(moves, stream_of(stream));
    });
  }

 private:
  template <typename Call>
  bool step(const Ints& from, const Ints& to, const Call& call) {
    const std::vector<PageId> sources = page_list(from, "from_pages");
    const std::vector<PageId> targets = page_list(to, "to_pages");
    if (sources.size() != targets.size()) {
      throw InvalidArgument("from_pages and to_pages differ in length");
    }
    std::vector<PageMove> moves;
    for (std::size_t i = 0; i < sources.size(); ++i) moves.push_back({sources[i], targets[i]});
    const nb::gil_scoped_release unlocked;
    const OnDevice here(device_);
    return call(moves);
  }

  int device_;
  std::vector<Mutable> kept_;
  cuda::DevicePool pool_;
  const cuda::DevicePool* pools_[1];
  cuda::Compactor compactor_;
};

cuda::PatchedArray::Kind patched_kind(const std::string& name) {
  using Kind = cuda::PatchedArray::Kind;
  if (name == "pages") return Kind::pages;
  if (name == "slots") return Kind::slots;
  if (name == "keyed_by_page") return Kind::keyed_by_page;
  if (name == "keyed_by_slot") return Kind::keyed_by_slot;
  throw InvalidArgument("an array of '" + name +
                        "'; give pages, slots, keyed_by_page or keyed_by_slot");
}

std::int64_t contiguous_bytes(const Tensor& tensor, const char* name) {
  std::int64_t dense = 1;
  for (std::size_t d = tensor.ndim(); d-- > 0;) {
    if (tensor.shape(d) > 1 && tensor.stride(d) != dense) {
      throw InvalidArgument(std::string(name) + " is not contiguous");
    }
    dense *= static_cast<std::int64_t>(tensor.shape(d));
  }
  return dense * bytes_per(tensor);
}

void add_plane(TensorCompactor::Parts& parts, const Mutable& plane) {
  const std::string name = "planes[" + std::to_string(parts.planes.size()) + "]";
  const Tensor read(plane);
  require_on(read, kCuda, parts.device, name.c_str());
  const std::int64_t bytes = contiguous_bytes(read, name.c_str());
  const auto rows = static_cast<std::int64_t>(plane.ndim() > 0 ? plane.shape(0) : 0);
  const std::int64_t size = parts.layout.page_size;
  if (parts.planes.empty()) parts.pages = rows / size;
  if (rows < size || rows != parts.pages * size) {
    throw InvalidArgument(name + " has " + std::to_string(rows) +
                          " rows, not the whole pages of the others");
  }
  parts.layout.buffers.push_back({name, {bytes / rows}, 1});
  parts.planes.push_back({.data = plane.data(), .stride = bytes / parts.pages});
  parts.kept.push_back(plane);
}

void add_array(TensorCompactor::Parts& parts, const Mutable& array, const std::string& kind) {
  const std::string name = "arrays[" + std::to_string(parts.arrays.size()) + "]";
  const Tensor read(array);
  require_on(read, kCuda, parts.device, name.c_str());
  (void)contiguous_bytes(read, name.c_str());
  const bool wide = array.dtype() == nb::dtype<std::int64_t>();
  if (!wide && array.dtype() != nb::dtype<std::int32_t>()) {
    throw InvalidArgument(name + " is neither int32 nor int64");
  }
  parts.arrays.push_back({.entries = array.data(),
                          .count = static_cast<std::int64_t>(array.size()),
                          .type = wide ? IndexType::int64 : IndexType::int32,
                          .kind = patched_kind(kind)});
  parts.kept.push_back(array);
}

void make_compactor(TensorCompactor* self, const std::vector<Mutable>& planes,
                    std::int64_t page_size,
                    const std::vector<std::pair<Mutable, std::string>>& arrays,
                    std::int64_t moves_max) {
  if (planes.empty() || page_size < 1) throw InvalidArgument("no planes, or page_size below 1");
  if (planes[0].device_type() != kCuda) throw InvalidArgument("planes[0] is not on a CUDA device");
  TensorCompactor::Parts parts;
  parts.device = planes[0].device_id();
  parts.layout.page_size = page_size;
  for (const Mutable& plane : planes) add_plane(parts, plane);
  for (const auto& [array, kind] : arrays) add_array(parts, array, kind);
  const OnDevice here(parts.device);
  new (self) TensorCompactor(std::move(parts), moves_max);
}

void bind_attention(nb::module_& m) {
  const std::string text =
      std::string(
          "The arrays of one tree-verify call on a CUDA device, read in place when it runs.\n\n"
          "Made once, it serves every step that has its arrays at the same place, captured graphs\n"
          "among them; it keeps the tensors. All are on one device.\n\n") +
      kVerifyArgumentsText +
      "out: [tokens, heads, 512 or head_dim], bf16, float16 or float32; lse: float32 [tokens,\n"
      "heads], natural log. Raises InvalidArgument.";
  nb::class_<VerifyCall> call(m, "VerifyCall", text.c_str());
  with_argument_names(
      [&](const auto&... names) {
        call.def("__init__",
                 taking_arguments(Parameters<VerifyCall*>{},
                                  Parameters<const Mutable&, const std::optional<Mutable>&>{},
                                  make_call),
                 names...);
      },
      nb::arg("out"), nb::arg("lse") = nb::none(), nb::kw_only());
  nb::class_<Attention>(
      m, "TreeVerify",
      "Tree-verify attention on the current CUDA device, within static bounds.\n\n"
      "batch_max: sequences; tokens_max: query tokens of a batch; q_len_max: of one sequence;\n"
      "length_max: prefix and nodes of one sequence, tokens. splits: pieces that a sequence is "
      "cut\n"
      "into, 0: as the schedule finds best. batch_invariant: the bits of a sequence's output do\n"
      "not depend on its neighbours. Raises UnsupportedDevice where no kernel runs.")
      .def(
          "__init__",
          [](Attention* self, std::int32_t batch_max, std::int32_t tokens_max,
             std::int32_t q_len_max, std::int32_t length_max, std::int32_t splits,
             bool batch_invariant, std::int32_t split_tokens, std::optional<int> device) {
            int current = 0;
            if (!device) PACKSTONE_CUDA_CHECK(cudaGetDevice(&current));
            const OnDevice here(device.value_or(current));
            new (self) Attention{cuda::TreeVerify({.bounds = {.batch_max = batch_max,
                                                              .tokens_max = tokens_max,
                                                              .q_len_max = q_len_max,
                                                              .length_max = length_max},
                                                   .splits = splits,
                                                   .batch_invariant = batch_invariant,
                                                   .split_tokens = split_tokens})};
          },
          nb::arg("batch_max"), nb::arg("tokens_max"), nb::arg("q_len_max"), nb::arg("length_max"),
          nb::kw_only(), nb::arg("splits") = 0, nb::arg("batch_invariant") = false,
          nb::arg("split_tokens") = 0, nb::arg("device") = nb::none())
      .def(
          "workspace_bytes",
          [](const Attention& self, const VerifyCall& call) {
            require_same_device(self, call);
            const OnDevice here(call.device);
            return self.verify.workspace_bytes(call.params);
          },
          nb::arg("call"),
          "Bytes of scratch that every call of this shape within the bounds needs.")
      .def(
          "run", &run, nb::arg("call"), nb::arg("workspace"), nb::arg("stream"),
          nb::arg("reuse_schedule") = false,
          "Queues the call on `stream` (a cudaStream_t as int). Does not synchronise; may be "
          "captured.\n\n"
          "workspace: contiguous [n] of any type on the call's device, 256-byte aligned, not used\n"
          "by another call meanwhile. reuse_schedule: take the schedule that the call before with\n"
          "this workspace made, for the layers of a model after the first; shape, lengths, mask "
          "and\n"
          "where sequences begin in the table (indptr, or a padded table's row stride) must be\n"
          "those of that call. The GIL is released. Raises InvalidArgument, CudaError.");
  m.def(
      "merge_states", &merge, nb::arg("out_a"), nb::arg("lse_a"), nb::arg("out_b"),
      nb::arg("lse_b"), nb::arg("out"), nb::arg("lse"), nb::arg("stream"),
      "Merges two partial attentions of the same rows over disjoint tokens, queued on "
      "`stream`.\n\n"
      "out_a, out_b, out: [rows, dim] contiguous, bf16, float16 or float32; lse_a, lse_b, lse:\n"
      "float32 [rows], natural log (lse may be None); out may be out_a or out_b. All on one CUDA\n"
      "device. The GIL is released. Raises InvalidArgument, CudaError.");
}

void bind_compactor(nb::module_& m) {
  nb::class_<TensorCompactor>(
      m, "Compactor",
      "Moves pages of KV tensors on a CUDA device, and renames them in index tensors there.\n\n"
      "planes: tensors [rows, ...], contiguous, one a buffer and layer; page p is rows\n"
      "p * page_size on. arrays: [(int32 or int64 tensor, kind)], contiguous, whose entries are\n"
      "'pages' or 'slots', or belong to the page or slot of their index ('keyed_by_page',\n"
      "'keyed_by_slot'). moves_max: of one call. All are kept, and must stay where they are.\n"
      "Raises InvalidArgument.")
      .def("__init__", &make_compactor, nb::arg("planes"), nb::arg("page_size"),
           nb::arg("arrays") = std::vector<std::pair<Mutable, std::string>>{}, nb::kw_only(),
           nb::arg("moves_max") = 4096)
      .def("compact", &TensorCompactor::compact, nb::arg("from_pages"), nb::arg("to_pages"),
           nb::arg("stream"),
           "Copies each page `from` to `to` in every plane, then renames it in every array, in\n"
           "order of `stream`. Does not synchronise.\n\n"
           "from_pages, to_pages: int32 or int64 [n] in host memory (columns of MovePlan.moves).\n"
           "False, with nothing done, while too many earlier steps are still on their way to the\n"
           "device. The GIL is released. Raises PageError, InvalidArgument, CudaError.")
      .def("copy", &TensorCompactor::copy, nb::arg("from_pages"), nb::arg("to_pages"),
           nb::arg("stream"), "As compact, without renaming anything: copies on write.");
}

}  // namespace

void translate_device_error(const std::exception_ptr& in_flight, void* payload) {
  const DeviceClasses& classes = *static_cast<const DeviceClasses*>(payload);
  try {
    std::rethrow_exception(in_flight);
  } catch (const cuda::CudaError& fault) {
    nb::object error = nb::handle(classes.cuda_error)(fault.what());
    error.attr("code") = static_cast<int>(fault.code());
    PyErr_SetObject(classes.cuda_error, error.ptr());
  } catch (const cuda::UnsupportedDevice& fault) {
    PyErr_SetString(classes.unsupported_device, fault.what());
  }
}

void bind_device(nb::module_& m) {
  bind_attention(m);
  bind_compactor(m);
}

}  // namespace packstone::python
