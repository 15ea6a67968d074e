// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Attention inputs on the device, a run of the kernels with poisoned outputs and guarded scratch,
/// and the comparison with the CPU oracle.

#include "kernels/gqa_launch.hpp"
#include "kernels/mla_launch.hpp"
#include "tests/support_attention.hpp"

#include <packstone/cuda/error.hpp>
#include <packstone/cuda/memory.hpp>
#include <packstone/reference_verify.hpp>
#include <packstone/verify_checks.hpp>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace packstone::test {

class AttentionDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    (void)cudaGetLastError();
    if (error != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  }
};

/// A test that runs for each kind of attention.
class AttentionKindTest : public AttentionDeviceTest,
                          public ::testing::WithParamInterface<AttentionKind> {
 protected:
  /// A small case of the kind under test.
  static AttentionCase base_case() {
    AttentionCase c;
    c.kind = GetParam();
    c.heads = 8;
    c.kv_heads = is_gqa() ? 2 : 1;
    c.scale = is_gqa() ? 1.0F : 0.5F;
    return c;
  }
  static bool is_gqa() { return GetParam() == AttentionKind::gqa; }
};

/// A device array of exactly the size of its source, so that a checker sees the first read past it.
class DeviceArray {
 public:
  template <typename T>
  void upload(const std::vector<T>& from) {
    const auto bytes = static_cast<std::int64_t>(from.size() * sizeof(T));
    if (bytes != memory_.bytes()) memory_ = cuda::DeviceMemory(bytes);
    if (bytes > 0)
      PACKSTONE_CUDA_CHECK(
          cudaMemcpy(memory_.data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  template <typename T>
  void download(std::vector<T>* to) const {
    to->resize(static_cast<std::size_t>(memory_.bytes()) / sizeof(T));
    if (!to->empty())
      PACKSTONE_CUDA_CHECK(
          cudaMemcpy(to->data(), memory_.data(), to->size() * sizeof(T), cudaMemcpyDeviceToHost));
  }
  template <typename T>
  [[nodiscard]] T* as() const {
    return memory_.as<T>();
  }

 private:
  cuda::DeviceMemory memory_;
};

/// The arrays of an AttentionInputs on the device. `upload` again keeps addresses where sizes are
/// equal, as a graph needs.
class DeviceInputs {
 public:
  explicit DeviceInputs(AttentionInputs& host) { upload(host); }

  void upload(AttentionInputs& host) {
    params_ = host.params();
    prefix_.upload(host.prefix_lens);
    indptr_.upload(host.q_indptr);
    q_.upload(host.q);
    pool_k_.upload(host.pool_k);
    pool_rope_.upload(host.pool_rope);
    pool_v_.upload(host.pool_v);
    tail_k_.upload(host.tail_k);
    tail_rope_.upload(host.tail_rope);
    tail_v_.upload(host.tail_v);
    table_.upload(host.table);
    table_indptr_.upload(host.table_indptr);
    parents_.upload(host.parents);
    words_.upload(host.words);
    sparse_.upload(host.sparse);
    poison_outputs(host);
    point();
  }

  /// Outputs back to NaN.
  void poison_outputs(const AttentionInputs& host) {
    out_.upload(std::vector<std::uint8_t>(host.out.size(), 0xFF));
    lse_.upload(std::vector<float>(host.lse.size(), std::numeric_limits<float>::quiet_NaN()));
  }

  [[nodiscard]] VerifyParams& params() { return params_; }
  [[nodiscard]] std::vector<std::uint8_t> out() const {
    std::vector<std::uint8_t> bytes;
    out_.download(&bytes);
    return bytes;
  }
  [[nodiscard]] std::vector<float> lse() const {
    std::vector<float> values;
    lse_.download(&values);
    return values;
  }

 private:
  void point() {
    VerifyParams& p = params_;
    p.prefix_lens = prefix_.as<std::int32_t>();
    p.q_indptr = indptr_.as<std::int32_t>();
    p.q.data = q_.as<void>();
    p.pool.k = pool_k_.as<void>();
    if (p.pool.k_rope != nullptr) p.pool.k_rope = pool_rope_.as<void>();
    if (p.pool.v != nullptr) p.pool.v = pool_v_.as<void>();
    if (p.tail_place == TailPlace::separate) {
      p.tail.k = tail_k_.as<void>();
      if (p.tail.k_rope != nullptr) p.tail.k_rope = tail_rope_.as<void>();
      if (p.tail.v != nullptr) p.tail.v = tail_v_.as<void>();
    }
    p.table.entries = table_.as<void>();
    if (p.table.indptr != nullptr) p.table.indptr = table_indptr_.as<std::int32_t>();
    p.mask.parents = parents_.as<std::int32_t>();
    p.mask.words = words_.as<std::uint64_t>();
    if (p.sparse.entries != nullptr) p.sparse.entries = sparse_.as<std::int32_t>();
    p.output.out = out_.as<void>();
    if (p.output.lse != nullptr) p.output.lse = lse_.as<float>();
  }

  VerifyParams params_;
  DeviceArray prefix_, indptr_, q_, pool_k_, pool_rope_, pool_v_, tail_k_, tail_rope_, tail_v_,
      table_, table_indptr_, parents_, words_, sparse_, out_, lse_;
};

/// Bounds that a batch just meets.
inline VerifyBounds bounds_of(const AttentionInputs& inputs) {
  VerifyBounds bounds;
  bounds.batch_max = static_cast<std::int32_t>(inputs.prefix_lens.size());
  bounds.tokens_max = inputs.tokens;
  for (std::size_t b = 0; b < inputs.prefix_lens.size(); ++b) {
    const std::int32_t q_len = inputs.q_indptr[b + 1] - inputs.q_indptr[b];
    bounds.q_len_max = std::max(bounds.q_len_max, q_len);
    const std::int32_t prefix = std::max(inputs.prefix_lens[b], inputs.description().topk);
    bounds.length_max = std::max(bounds.length_max, prefix + q_len);
  }
  return bounds;
}

/// The kernels under test behind one face.
inline std::int64_t workspace_bytes(const VerifyParams& params, const VerifyPlanOptions& options) {
  const cuda::DeviceLimits device = cuda::current_device_limits();
  return params.kind == AttentionKind::gqa ? kernels::gqa_workspace_bytes(params, options, device)
                                           : kernels::mla_workspace_bytes(params, options, device);
}
inline void enqueue(const VerifyParams& params, const VerifyPlanOptions& options, void* workspace,
                    std::int64_t bytes, cudaStream_t stream, ScheduleUse use = ScheduleUse::make) {
  const cuda::DeviceLimits device = cuda::current_device_limits();
  if (params.kind == AttentionKind::gqa) {
    kernels::gqa_verify(params, options, device, workspace, bytes, stream, use);
  } else {
    kernels::mla_verify(params, options, device, workspace, bytes, stream, use);
  }
}

/// Scratch of exactly the size asked for, full of NaN, with guards behind it.
class Scratch {
 public:
  static constexpr std::int64_t kGuardBytes = 4096;
  explicit Scratch(std::int64_t bytes) : bytes_(bytes), memory_(bytes + kGuardBytes) {
    PACKSTONE_CUDA_CHECK(cudaMemset(memory_.data(), 0xFF, static_cast<std::size_t>(bytes)));
    PACKSTONE_CUDA_CHECK(cudaMemset(memory_.data() + bytes, 0xAB, kGuardBytes));
  }
  [[nodiscard]] void* data() const { return memory_.data(); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] bool guards_intact() const {
    std::vector<std::uint8_t> guard(kGuardBytes);
    PACKSTONE_CUDA_CHECK(
        cudaMemcpy(guard.data(), memory_.data() + bytes_, kGuardBytes, cudaMemcpyDeviceToHost));
    return std::all_of(guard.begin(), guard.end(), [](std::uint8_t byte) { return byte == 0xAB; });
  }

 private:
  std::int64_t bytes_;
  cuda::DeviceMemory memory_;
};

struct DeviceResult {
  std::vector<std::uint8_t> out;
  std::vector<float> lse;
  friend bool operator==(const DeviceResult& a, const DeviceResult& b) {
    return a.out == b.out && a.lse.size() == b.lse.size() &&
           std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)) == 0;
  }
};

inline DeviceResult run_on(DeviceInputs& device, const VerifyPlanOptions& options) {
  const Scratch scratch(workspace_bytes(device.params(), options));
  enqueue(device.params(), options, scratch.data(), scratch.bytes(), nullptr);
  PACKSTONE_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(scratch.guards_intact());
  return {device.out(), device.lse()};
}

inline DeviceResult run_device(AttentionInputs& inputs, VerifyPlanOptions options = {}) {
  if (options.bounds.batch_max == 0) options.bounds = bounds_of(inputs);
  DeviceInputs device(inputs);
  validate(device.params(), inputs.view());
  return run_on(device, options);
}

/// What is wrong with `got`, or empty.
inline std::string compare_with_oracle(AttentionInputs& inputs, const DeviceResult& got) {
  std::vector<float> out;
  std::vector<float> lse;
  reference_verify(inputs.oracle_params(&out, &lse));
  const AttentionCase& c = inputs.description();
  Tolerance tolerance;
  // The bound is for values of about 0.1, in proportion to which the absolute part grows.
  tolerance.absolute *= std::max(1.0, double{c.kv_spread} * double{c.v_scale} / 0.1);
  std::string wrong = difference(decode_output(got.out, c.out_type), out, tolerance);
  if (!wrong.empty()) return "out: " + wrong;
  if (!c.want_lse) return {};
  wrong = difference(got.lse, lse, kLseTolerance);
  return wrong.empty() ? wrong : "lse: " + wrong;
}

inline std::string describe(const AttentionCase& c) {
  std::string text = std::string(c.kind == AttentionKind::gqa ? "gqa " : "mla ") +
                     to_string(c.kv_type) + " heads " + std::to_string(c.heads) + "/" +
                     std::to_string(c.kv_heads) + " dim " + std::to_string(c.head_dim) + " page " +
                     std::to_string(c.page_size) + " mask " +
                     std::to_string(static_cast<int>(c.mask)) + " tree " +
                     std::to_string(static_cast<int>(c.tree)) + " tail " +
                     std::to_string(static_cast<int>(c.tail)) + " topk " + std::to_string(c.topk) +
                     " seed " + std::to_string(c.seed) + " (prefix, q_len)";
  for (std::size_t i = 0; i < c.prefix.size() && i < 8; ++i) {
    text += " (" + std::to_string(c.prefix[i]) + ", " + std::to_string(c.q_len[i]) + ")";
  }
  return text;
}

inline void expect_right(const AttentionCase& c, const VerifyPlanOptions& options = {}) {
  AttentionInputs inputs(c);
  const DeviceResult got = run_device(inputs, options);
  EXPECT_EQ(compare_with_oracle(inputs, got), "") << describe(c);
}

}  // namespace packstone::test
