// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The ring of KV tiles in shared memory: barriers, and the copies that fill it row by row from
/// the slots of its tokens. From compute capability 9.0 a row is one bulk copy of the copy engine;
/// before, 16-byte asynchronous copies of a warp. Forms as in the PTX ISA, "mbarrier" and
/// "cp.async".

#include "kernels/mla_line.cuh"

#include <cstdint>

namespace packstone::kernels::mla {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && !defined(PACKSTONE_NO_BULK_COPY)
inline constexpr bool kBulkCopy = true;
#else
inline constexpr bool kBulkCopy = false;
#endif

__device__ inline void barrier_init(std::uint32_t barrier, std::uint32_t count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ inline void barrier_arrive(std::uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier)
               : "memory");
}

/// Waits until the phase of the given parity is complete.
__device__ inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  // mbarrier.test_wait.parity came later than 8.0's own barriers in the PTX ISA (7.1), but runs
  // there.
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

/// Orders the calling thread's stores to shared memory before later copies of the copy engine.
__device__ inline void fence_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ inline void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// True in one lane of a whole warp; what follows is known to be one lane's work, so its operands
/// go to uniform registers without a loop over lanes.
__device__ inline bool elect_lane() {
  std::uint32_t elected;
  asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xFFFFFFFF;\nselp.b32 %0, 1, 0, one;\n}"
               : "=r"(elected));
  return elected != 0;
}

/// KV rows go first when the L2 cache needs room: of a long prefix nothing stays there anyway, and
/// code, tables and partials should. What createpolicy.fractional.L2::evict_first makes of
/// 1.0, which it would compute anew for every tile (also a constant in CUTLASS).
inline constexpr std::uint64_t kEvictFirst = 0x12F0000000000000U;

/// The `.shared::cta` spelling: the other one costs a call on compute capability 12.0.
__device__ inline void bulk_copy(std::uint32_t shared, const void* global, std::uint32_t bytes,
                                 std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(kEvictFirst)
      : "memory");
}
#endif

/// Copies a row, or none of 0 bytes; the whole warp calls, and arrives once at `barrier`.
__device__ inline void copy_row(std::uint32_t shared, const char* from, std::uint32_t bytes,
                                std::uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (elect_lane()) {
    barrier_expect(barrier, bytes);
    if (bytes > 0) bulk_copy(shared, from, bytes, barrier);
  }
  __syncwarp();
#endif
}

/// What a token without a row is copied from.
__device__ static const uint4 kZeroRow[72] = {};

/// Where a row is; `rope` only where some rope part is apart.
struct RowPlace {
  const char* latent;
  const char* rope;
};
template <KvType type>
__device__ RowPlace place_of(const MlaArgs& args, const PendingRow& row) {
  const std::int32_t kind = row.kind_and_offset & 3;
  const KvRows& rows = kind == PendingRow::tail ? args.params.tail : args.params.pool;
  std::int64_t number = row.number;
  if (kind == PendingRow::page)
    number = number * args.params.table.page_size + (row.kind_and_offset >> 2);
  const char* latent = kind == PendingRow::none
                           ? reinterpret_cast<const char*>(kZeroRow)
                           : static_cast<const char*>(rows.k) + number * rows.k_stride_row;
  if (!args.rope_apart) return {latent, nullptr};
  const bool apart = kind != PendingRow::none && rows.k_rope != nullptr;
  return {latent, apart ? static_cast<const char*>(rows.k_rope) + number * rows.k_rope_stride_row
                        : latent + mla_latent_bytes(type)};
}

/// A warp's places of rows to come: of their latent parts, and behind them of their rope parts.
inline constexpr std::uint32_t kPlaceBytes = 8;
inline constexpr std::uint32_t kRopePlaces = 32 * kPlaceBytes;
__device__ inline void store_place(std::uint32_t places, std::uint32_t lane,
                                   const RowPlace& place) {
  const std::uint32_t own = places + kPlaceBytes * lane;
  asm volatile("st.shared.u64 [%0], %1;" ::"r"(own), "l"(place.latent) : "memory");
  if (place.rope != nullptr)
    asm volatile("st.shared.u64 [%0], %1;" ::"r"(own + kRopePlaces), "l"(place.rope) : "memory");
}
__device__ inline const char* load_place(std::uint32_t at) {
  const char* place;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(place) : "r"(at) : "memory");
  return place;
}
__device__ inline void load_two_places(const char*& first, const char*& second, std::uint32_t at) {
  asm volatile("ld.shared.v2.u64 {%0,%1}, [%2];" : "=l"(first), "=l"(second) : "r"(at) : "memory");
}

/// Copies rows `first` to `first` + count - 1 of a tile into a stage, whose places are at `places`
/// one after the other. The whole warp calls. `barrier` completes when all rows of the tile are
/// there. One lane issues all copies: with a lane for each, they would be issued one by one in a
/// loop, tens of cycles each.
template <KvType type, std::uint32_t count>
__device__ void copy_rows(const MlaArgs& args, std::uint32_t places, std::uint32_t first,
                          std::uint32_t stage, std::uint32_t barrier) {
  constexpr auto kPitch = static_cast<std::uint32_t>(MlaPolicy{type, MlaShape::few_rows}.pitch());
  constexpr auto kLatent = static_cast<std::uint32_t>(mla_latent_bytes(type));
  const auto rope_bytes =
      static_cast<std::uint32_t>(args.params.rope_dim == 0 ? 0 : mla_rope_bytes(type));
  const std::uint32_t to = stage + first * kPitch;
  if constexpr (kBulkCopy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const std::uint32_t bytes = args.rope_apart ? kLatent : kLatent + rope_bytes;
    if (elect_lane()) {
      barrier_expect(barrier, count * (kLatent + rope_bytes));
      const char* from[count];
#pragma unroll
      for (std::uint32_t i = 0; i < count; i += 2)
        load_two_places(from[i], from[i + 1], places + kPlaceBytes * i);
#pragma unroll
      for (std::uint32_t i = 0; i < count; ++i) bulk_copy(to + i * kPitch, from[i], bytes, barrier);
      if (args.rope_apart) {
        for (std::uint32_t i = 0; i < count; ++i) {
          bulk_copy(to + i * kPitch + kLatent, load_place(places + kRopePlaces + kPlaceBytes * i),
                    rope_bytes, barrier);
        }
      }
    }
    __syncwarp();
#endif
  } else {
    const std::uint32_t lane = threadIdx.x & 31U;
#pragma unroll
    for (std::uint32_t i = 0; i < count; ++i) {
      const char* from = load_place(places + kPlaceBytes * i);
      const char* rope =
          args.rope_apart ? load_place(places + kRopePlaces + kPlaceBytes * i) : from + kLatent;
#pragma unroll
      for (std::uint32_t begin = 0; begin < kPitch; begin += 512) {
        const std::uint32_t at = begin + 16 * lane;
        if (at >= kLatent + rope_bytes) continue;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * kPitch + at),
                     "l"(at >= kLatent ? rope + (at - kLatent) : from + at)
                     : "memory");
      }
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
  }
}

/// Arrivals that complete a stage's barrier when `warps` warps copy a tile.
__device__ constexpr std::uint32_t copy_arrivals(std::uint32_t warps) {
  return kBulkCopy ? warps : 32 * warps;
}

}  // namespace packstone::kernels::mla
