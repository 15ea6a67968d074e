// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/compactor_rig.cuh"

#include <packstone/cuda/draft_commit.hpp>
#include <packstone/kv_manager.hpp>

#include <algorithm>
#include <array>
#include <thread>

namespace packstone::testing {
namespace {

class CompactorStreams : public DeviceTest {};

/// Reads a page's id at once, waits at a gate, and only then copies the page's first plane: as an
/// attention kernel that has read its table before the table changes.
__global__ void late_reader(TokenTable table, std::int64_t row, const volatile int* open,
                            RowPlane plane, std::uint8_t* out, std::int64_t bytes,
                            volatile int* started) {
  __shared__ std::int32_t page;
  if (threadIdx.x == 0) {
    page = static_cast<const volatile std::int32_t*>(table.entries)[row * table.row_stride];
    *started = 1;
    std::uint64_t start = 0;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    std::uint64_t now = start;
    while (*open == 0 && now - start < 5'000'000'000ULL) {
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    }
  }
  __syncthreads();
  const auto* from = reinterpret_cast<const std::uint8_t*>(plane.base) + page * plane.page_stride;
  for (std::int64_t i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = from[i];
}

// GS-02 and GS-08: a page that a reader in flight was given is not reused before that reader ends.
TEST_F(CompactorStreams, Gs02Gs08SourceIsReusedOnlyAfterTheLastReader) {
  Rig rig(small_mla());
  Stream reader;
  KvManager manager({.pages = 64, .page_size = 16, .policy = "sorted"});
  SeqId seq;
  ASSERT_EQ(manager.create(seq), Status::ok);
  ASSERT_EQ(manager.append(seq, 16), Status::ok);
  const PageId page = manager.pages(seq)[0];
  rig.place(0, {page});
  sync(rig.stream.get());
  const RowPlane plane = rig.pool.row_planes()[0];
  const std::int64_t bytes = 16 * plane.row_bytes;
  const OnDevice<std::uint8_t> out(static_cast<std::size_t>(bytes));
  const PinnedMemory started(sizeof(int));
  *started.as<volatile int>() = 0;
  PinnedMemory gate(sizeof(int));
  *gate.as<volatile int>() = 0;
  late_reader<<<1, 128, 0, reader.get()>>>(rig.table.view(), 0, gate.as<int>(), plane, out.data(),
                                           bytes, started.as<int>());
  PACKSTONE_CUDA_CHECK(cudaGetLastError());
  while (*started.as<volatile int>() == 0) std::this_thread::yield();

  EventFence fence;
  const PageMove move{page, PageId{33}};
  manager.apply(std::array{move}, std::array{TablePatch{seq, 0, move}}, fence.next());
  ASSERT_TRUE(rig.compactor.compact(std::array{move}, rig.stream.get()));
  fence.record({rig.stream.get(), reader.get()});
  sync(rig.stream.get());  // the step itself is over, the reader is not
  EXPECT_EQ(fence.completed(), 0U);
  EXPECT_EQ(manager.reclaim(fence.completed()), 0);
  EXPECT_EQ(manager.allocator().set().state(page), PageState::retired);

  *gate.as<volatile int>() = 1;
  sync(reader.get());
  EXPECT_EQ(fence.completed(), 1U);
  EXPECT_EQ(manager.reclaim(fence.completed()), 1);
  const std::vector<std::uint8_t> read = out.get();
  for (std::int64_t i = 0; i < bytes; ++i) {
    ASSERT_EQ(read[static_cast<std::size_t>(i)],
              pattern(rig.id(0, 0, i / plane.row_bytes), 0, i % plane.row_bytes));
  }
  // Now the old place may be refilled, and the sequence still reads its own bytes.
  rig.place(1, {page});
  EXPECT_EQ(rig.wrong(0, 1, 0), 0U);
  EXPECT_EQ(rig.wrong(1, 1, 1), 0U);
}

// GS-03: a page freed behind a stalled write is not handed to another stream before the write.
TEST_F(CompactorStreams, Gs03FreedPageKeepsTheOrderOfTheStreamThatFreedIt) {
  Rig rig(small_mla());
  Stream a;
  Stream c;
  const RowPlane plane = rig.pool.row_planes()[0];
  auto* const place =
      reinterpret_cast<void*>(plane.base + static_cast<std::uint64_t>(5 * plane.page_stride));
  const auto bytes = static_cast<std::size_t>(16 * plane.row_bytes);
  FreeSet set(64);
  set.acquire(PageId{5}, 1);
  set.acquire(PageId{6}, 1);
  EventFence fence;
  {
    Gate gate;
    gate.close(a.get());
    PACKSTONE_CUDA_CHECK(cudaMemsetAsync(place, 0xAA, bytes, a.get()));
    set.retire({PageId{5}, PageId{6}}, fence.record(a.get()));
    std::vector<PageId> freed;
    set.reclaim(fence.completed(), freed);  // B gathers A's list: nothing is there yet
    EXPECT_TRUE(freed.empty());
    gate.open();
    sync(a.get());
    set.reclaim(fence.completed(), freed);
    ASSERT_EQ(freed, pages_of({5}));
  }
  PACKSTONE_CUDA_CHECK(cudaMemsetAsync(place, 0xCC, bytes, c.get()));
  sync(c.get());
  std::vector<std::uint8_t> read(bytes);
  PACKSTONE_CUDA_CHECK(cudaMemcpy(read.data(), place, bytes, cudaMemcpyDeviceToHost));
  EXPECT_TRUE(std::ranges::all_of(read, [](std::uint8_t b) { return b == 0xCC; }));
}

/// Sums the bytes of a sequence through the table, slowly, many times over.
__global__ void slow_sums(TokenTable table, std::int32_t pages, RowPlane plane, std::int64_t bytes,
                          std::int32_t rounds, unsigned long long* sums) {
  const std::int64_t row = blockIdx.x % 8;
  unsigned long long sum = 0;
  for (std::int32_t round = 0; round < rounds; ++round) {
    for (std::int32_t e = 0; e < pages; ++e) {
      const std::int32_t page =
          static_cast<const volatile std::int32_t*>(table.entries)[row * table.row_stride + e];
      const auto* from =
          reinterpret_cast<const volatile std::uint8_t*>(plane.base) + page * plane.page_stride;
      for (std::int64_t i = threadIdx.x; i < bytes; i += blockDim.x) {
        sum += static_cast<unsigned long long>(from[i]) * static_cast<unsigned long long>(i + e);
      }
    }
  }
  atomicAdd(sums + blockIdx.x, sum);
}

// GS-08: 50 requests read in a long loop while steps on another stream move their pages.
TEST_F(CompactorStreams, Gs08ReadersBesideStepsSeeTheSameBytes) {
  Rig rig(small_mla(), 512, {.multiprocessors = 8, .stage_bytes = 4096});
  std::array<std::vector<PageId>, 8> rows;
  std::int32_t next = 1;
  for (std::int64_t r = 0; r < 8; ++r) {
    for (int i = 0; i < 12; ++i) rows[static_cast<std::size_t>(r)].push_back(PageId{next++});
    rig.place(r, rows[static_cast<std::size_t>(r)]);
  }
  const RowPlane plane = rig.pool.row_planes()[0];
  const std::int64_t bytes = 16 * plane.row_bytes;
  Stream reader;
  const OnDevice<unsigned long long> serial(50);
  const OnDevice<unsigned long long> beside(50);
  sync(rig.stream.get());
  slow_sums<<<50, 256, 0, reader.get()>>>(rig.table.view(), 12, plane, bytes, 20, serial.data());
  PACKSTONE_CUDA_CHECK(cudaGetLastError());
  sync(reader.get());
  slow_sums<<<50, 256, 0, reader.get()>>>(rig.table.view(), 12, plane, bytes, 20, beside.data());
  PACKSTONE_CUDA_CHECK(cudaGetLastError());
  EventFence fence;
  std::int32_t place = 512;  // each step takes fresh pages: sources wait for the fence
  for (int step = 0; step < 6; ++step) {
    std::vector<PageMove> moves;
    for (auto& row : rows) {
      for (std::size_t i = static_cast<std::size_t>(step % 2); i < row.size(); i += 2) {
        moves.push_back({row[i], PageId{--place}});
        row[i] = moves.back().to;
      }
    }
    if (place < 120) break;
    ASSERT_TRUE(rig.compactor.compact(moves, rig.stream.get()));
    fence.record({rig.stream.get(), reader.get()});
  }
  sync(reader.get());
  sync(rig.stream.get());
  EXPECT_EQ(fence.completed(), fence.recorded());
  EXPECT_EQ(beside.get(), serial.get());
  for (std::int64_t r = 0; r < 8; ++r) EXPECT_EQ(rig.wrong(r, 12, r), 0U);
}

TEST_F(CompactorStreams, MoveAndPatchOnTwoStreams) {
  Rig rig(small_mla(), 64, {.multiprocessors = 4});
  rig.place(0, pages_of({30, 31, 32}));
  Stream copies;
  for (std::int32_t round = 0; round < 5; ++round) {
    std::vector<PageMove> moves;
    for (std::int32_t i = 0; i < 3; ++i) {
      moves.push_back(round % 2 == 0 ? PageMove{PageId{30 + i}, PageId{50 + i}}
                                     : PageMove{PageId{50 + i}, PageId{30 + i}});
    }
    ASSERT_TRUE(rig.compactor.compact(moves, copies.get(), rig.stream.get()));
    EXPECT_EQ(rig.wrong(0, 3, 0), 0U) << round;
  }
}

TEST_F(CompactorStreams, StagingBlocksAreNotReusedBeforeTheirCopy) {
  Rig rig(small_mla());
  rig.place(0, pages_of({10, 11, 12, 13, 14, 15}));
  Gate gate;
  gate.close(rig.stream.get());
  std::int32_t accepted = 0;
  for (std::int32_t i = 0; i < 6; ++i) {
    if (!rig.compactor.compact(std::array{PageMove{PageId{10 + i}, PageId{40 + i}}},
                               rig.stream.get())) {
      break;
    }
    ++accepted;
  }
  EXPECT_EQ(accepted, 4);  // the ring's blocks; the fifth call did nothing
  gate.open();
  EXPECT_EQ(rig.row(0, 6), (std::vector<std::int32_t>{40, 41, 42, 43, 14, 15}));
  EXPECT_EQ(rig.wrong(0, 6, 0), 0U);
}

// BP-02: the shared memory opt-in belongs to a device and a kernel; a failure is never a success.
TEST_F(CompactorStreams, Bp02SharedMemoryOptInPerDeviceAndFromThreads) {
  int devices = 0;
  PACKSTONE_CUDA_CHECK(cudaGetDeviceCount(&devices));
  const auto run = [](int device) {
    PACKSTONE_CUDA_CHECK(cudaSetDevice(device));
    // Small and large rings share the kernel: the later, smaller one must not lower the limit.
    Rig large(small_mla(), 64, {.stage_bytes = 9216});
    Rig small(small_mla(), 64, {.warps = 1, .stages = 4, .stage_bytes = 128});
    for (Rig* rig : {&large, &small, &large}) {
      rig->place(0, pages_of({9, 10}));
      ASSERT_TRUE(
          rig->compactor.compact(std::array{PageMove{PageId{9}, PageId{1}}}, rig->stream.get()));
      EXPECT_EQ(rig->wrong(0, 2, 0), 0U);
    }
  };
  for (int device = 0; device < devices; ++device) run(device);
  std::thread first(run, 0);
  std::thread second(run, devices - 1);
  first.join();
  second.join();
  PACKSTONE_CUDA_CHECK(cudaSetDevice(0));
  if (devices > 1) {
    Rig rig(small_mla());
    PACKSTONE_CUDA_CHECK(cudaSetDevice(1));
    EXPECT_THROW(
        (void)rig.compactor.compact(std::array{PageMove{PageId{9}, PageId{1}}}, rig.stream.get()),
        InvalidArgument);
    PACKSTONE_CUDA_CHECK(cudaSetDevice(0));
  }
  // A tree too large for shared memory fails when the object is made, not at the launch.
  DevicePool pool(small_mla(), {.pages = 8});
  EXPECT_THROW(DraftCommit(pool, {.batch_max = 1, .nodes_max = 100'000}), UnsupportedDevice);
  EXPECT_THROW(Rig(small_mla(), 64, {.stage_bytes = 100}), InvalidArgument);
}

TEST_F(CompactorStreams, CopiesOnePageToSeveralForks) {
  Rig rig(small_mla(7));
  rig.place(0, pages_of({9, 10}));
  rig.table.set(1, 0, pages_of({20, 21}));
  rig.table.set(2, 0, pages_of({30, 10}));
  ASSERT_TRUE(rig.table.flush(rig.stream.get()));
  ASSERT_TRUE(rig.compactor.copy(
      std::array{PageMove{PageId{9}, PageId{20}}, PageMove{PageId{10}, PageId{21}},
                 PageMove{PageId{9}, PageId{30}}},
      rig.stream.get()));
  for (const std::int64_t row : {0, 1, 2}) EXPECT_EQ(rig.wrong(row, 2, 0), 0U) << row;
  EXPECT_EQ(rig.row(0, 2), (std::vector<std::int32_t>{9, 10}));  // nothing was renamed
}

}  // namespace
}  // namespace packstone::testing
