// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/device_test.cuh"

#include <packstone/cuda/page_table.hpp>

#include <random>

namespace packstone::testing {
namespace {

using Options = DevicePageTableOptions;

std::vector<std::int64_t> entries_of(const DevicePageTable& table, cudaStream_t stream) {
  sync(stream);
  const auto count = static_cast<std::size_t>(table.entries());
  std::vector<std::int64_t> result(count);
  if (table.options().type == IndexType::int64) {
    PACKSTONE_CUDA_CHECK(
        cudaMemcpy(result.data(), table.data(), count * 8, cudaMemcpyDeviceToHost));
    return result;
  }
  std::vector<std::int32_t> narrow(count);
  PACKSTONE_CUDA_CHECK(cudaMemcpy(narrow.data(), table.data(), count * 4, cudaMemcpyDeviceToHost));
  return {narrow.begin(), narrow.end()};
}

std::vector<PageId> some_pages(std::mt19937_64& random, std::size_t count, PageCount pool) {
  std::vector<PageId> pages;
  for (std::size_t i = 0; i < count; ++i) {
    pages.push_back(PageId{static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(pool))});
  }
  return pages;
}

class PageTableTest : public DeviceTest {};

TEST_F(PageTableTest, RandomUpdatesEqualTheHostInEveryForm) {
  for (const std::int64_t page_size : {1, 7, 16, 64}) {
    for (const TableForm form : {TableForm::pages, TableForm::tokens}) {
      for (const IndexType type : {IndexType::int32, IndexType::int64}) {
        std::mt19937_64 random(11);
        constexpr std::int64_t kRows = 9;
        constexpr std::int64_t kColumns = 20;
        DevicePageTable table({.rows = kRows,
                               .columns = kColumns,
                               .page_size = page_size,
                               .pages = 300,
                               .form = form,
                               .type = type});
        const std::int64_t each = form == TableForm::tokens ? page_size : 1;
        std::vector<std::int64_t> model(static_cast<std::size_t>(kRows * kColumns * each), 0);
        Stream stream;
        const void* const address = table.view().entries;
        for (int flush = 0; flush < 12; ++flush) {
          for (int update = 0; update < 15; ++update) {  // overlaps within a flush are likely
            const auto row = static_cast<std::int64_t>(random() % kRows);
            const auto column = static_cast<std::int64_t>(random() % kColumns);
            const auto count = 1 + static_cast<std::int64_t>(random() % (kColumns - column));
            const bool clear = random() % 4 == 0;
            const std::vector<PageId> pages =
                some_pages(random, static_cast<std::size_t>(count), 300);
            if (clear) {
              table.clear(row, column, count);
            } else {
              table.set(row, column, pages);
            }
            for (std::int64_t i = 0; i < count * each; ++i) {
              const std::int64_t page = index_of(pages[static_cast<std::size_t>(i / each)]);
              model[static_cast<std::size_t>((row * kColumns + column) * each + i)] =
                  clear ? 0 : page * each + i % each;
            }
          }
          while (!table.flush(stream.get())) {
          }
          ASSERT_EQ(table.pending(), 0);
        }
        EXPECT_EQ(entries_of(table, stream.get()), model);
        EXPECT_EQ(table.view().entries, address);
        EXPECT_EQ(table.view().page_size, form == TableForm::tokens ? 1 : page_size);
      }
    }
  }
}

// SP-07: a row that is too narrow for the drafts is an error before anything is queued, never cut.
TEST_F(PageTableTest, Sp07NarrowRowIsAnErrorNotACut) {
  DevicePageTable table({.rows = 2, .columns = 4, .page_size = 16, .pages = 100});
  Stream stream;
  table.set(1, 0, std::vector<PageId>{PageId{9}});
  // 8 branches of 2 pages: 256 slots in a row of 64.
  EXPECT_THROW(table.set(0, 0, std::vector<PageId>(16, PageId{5})), InvalidArgument);
  // Length 254 of 256 and 4 nodes: the 17th page of a 16-page row.
  DevicePageTable wide({.rows = 1, .columns = 16, .page_size = 16, .pages = 100});
  EXPECT_THROW(wide.set(0, 15, std::vector<PageId>(2, PageId{5})), InvalidArgument);
  EXPECT_EQ(wide.pending(), 0);
  EXPECT_THROW(table.set(2, 0, std::vector<PageId>{PageId{5}}), InvalidArgument);
  EXPECT_THROW(table.set(-1, 0, std::vector<PageId>{PageId{5}}), InvalidArgument);
  EXPECT_THROW(table.set(0, -1, std::vector<PageId>{PageId{5}}), InvalidArgument);
  EXPECT_THROW(table.set(0, 0, std::vector<PageId>{PageId{100}}), PageError);
  EXPECT_THROW(table.set(0, 0, std::vector<PageId>{PageId{-1}}), PageError);
  EXPECT_THROW(table.clear(0, 3, 2), InvalidArgument);
  EXPECT_EQ(table.pending(), 1);
  ASSERT_TRUE(table.flush(stream.get()));
  EXPECT_EQ(entries_of(table, stream.get()), (std::vector<std::int64_t>{0, 0, 0, 0, 9, 0, 0, 0}));
}

TEST_F(PageTableTest, RefusesOptionsThatDoNotFit) {
  EXPECT_THROW(DevicePageTable({.rows = 0, .columns = 4, .pages = 10}), InvalidArgument);
  EXPECT_THROW(DevicePageTable({.rows = 1, .columns = 1, .page_size = 0, .pages = 10}),
               InvalidArgument);
  // 2^31 slots do not fit 32-bit token entries, 64-bit ones hold them.
  const std::int64_t pages = (std::int64_t{1} << 31) / 64 + 1;
  EXPECT_THROW(
      DevicePageTable(
          {.rows = 1, .columns = 2, .page_size = 64, .pages = pages, .form = TableForm::tokens}),
      InvalidArgument);
  DevicePageTable table({.rows = 1,
                         .columns = 1,
                         .page_size = 64,
                         .pages = pages,
                         .form = TableForm::tokens,
                         .type = IndexType::int64});
  Stream stream;
  table.set(0, 0, std::vector<PageId>{PageId{static_cast<std::int32_t>(pages - 1)}});
  ASSERT_TRUE(table.flush(stream.get()));
  EXPECT_EQ(entries_of(table, stream.get())[63], (pages - 1) * 64 + 63);
}

// Pinned staging is not written again before the copy that reads it has run.
TEST_F(PageTableTest, StagingIsNotReusedBeforeItsCopy) {
  DevicePageTable table(
      {.rows = 1, .columns = 8, .page_size = 16, .pages = 100, .staging_blocks = 3});
  Stream stream;
  Gate gate;
  gate.close(stream.get());
  int accepted = 0;
  for (std::int32_t i = 0; i < 8; ++i) {
    table.set(0, i, std::vector<PageId>{PageId{i + 1}});
    if (!table.flush(stream.get())) break;
    ++accepted;
  }
  EXPECT_EQ(accepted, 3);
  EXPECT_EQ(table.pending(), 1);  // the refused update is kept
  gate.open();
  sync(stream.get());
  ASSERT_TRUE(table.flush(stream.get()));
  EXPECT_EQ(entries_of(table, stream.get()), (std::vector<std::int64_t>{1, 2, 3, 4, 0, 0, 0, 0}));
}

__global__ void copy_row(TokenTable table, std::int32_t count, std::int32_t* out) {
  for (std::int32_t i = 0; i < count; ++i) {
    out[i] = static_cast<const std::int32_t*>(table.entries)[i];
  }
}

// The address is fixed: a graph captured before an update reads what the update wrote.
TEST_F(PageTableTest, CapturedReaderSeesLaterUpdates) {
  DevicePageTable table({.rows = 1, .columns = 4, .page_size = 16, .pages = 100});
  Stream stream;
  const OnDevice<std::int32_t> out(4);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  PACKSTONE_CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  copy_row<<<1, 1, 0, stream.get()>>>(table.view(), 4, out.data());
  table.set(0, 0, std::vector<PageId>{PageId{7}});
  EXPECT_THROW((void)table.flush(stream.get()), InvalidArgument);
  PACKSTONE_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  PACKSTONE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  ASSERT_TRUE(table.flush(stream.get()));
  PACKSTONE_CUDA_CHECK(cudaGraphLaunch(exec, stream.get()));
  sync(stream.get());
  EXPECT_EQ(out.get(), (std::vector<std::int32_t>{7, 0, 0, 0}));
  table.set(0, 1, std::vector<PageId>{PageId{8}, PageId{9}});
  ASSERT_TRUE(table.flush(stream.get()));
  PACKSTONE_CUDA_CHECK(cudaGraphLaunch(exec, stream.get()));
  sync(stream.get());
  EXPECT_EQ(out.get(), (std::vector<std::int32_t>{7, 8, 9, 0}));
  PACKSTONE_CUDA_CHECK(cudaGraphExecDestroy(exec));
  PACKSTONE_CUDA_CHECK(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace packstone::testing
