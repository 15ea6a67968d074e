/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI from C99: every function of packstone.h is called here (another test holds the list of
 * exported symbols against the ones this program names), its results are compared with what the
 * contract says. */
#include <packstone/packstone.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      printf("%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, \
             packstone_last_error_message());                               \
      failures += 1;                                                        \
    }                                                                       \
  } while (0)

static packstone_error last_error(void) {
  packstone_error error;
  memset(&error, 0, sizeof error);
  error.size = sizeof error;
  CHECK(packstone_last_error(&error) == PACKSTONE_OK);
  return error;
}

static packstone_manager* new_manager(int64_t pages, int64_t page_size, const char* policy) {
  packstone_manager_options options = {.size = sizeof options, .pages = pages};
  packstone_manager* manager = NULL;
  options.page_size = page_size;
  options.policy = policy;
  CHECK(packstone_manager_create(&options, &manager) == PACKSTONE_OK);
  return manager;
}

static packstone_statistics statistics_of(const packstone_manager* manager) {
  packstone_statistics result;
  memset(&result, 0, sizeof result);
  result.size = sizeof result;
  CHECK(packstone_manager_statistics(manager, &result) == PACKSTONE_OK);
  return result;
}

static void test_border(void) {
  packstone_manager* manager = NULL;
  packstone_manager_options options = {.size = sizeof options, .pages = 8};
  packstone_manager_options newer[2];
  struct {
    size_t size;
    packstone_status status;
  } older = {sizeof older, 99};

  CHECK(strcmp(packstone_version(), "0.1.0") == 0);
  CHECK(packstone_has_cuda() == 0 || packstone_has_cuda() == 1);
  CHECK(strcmp(packstone_status_name(PACKSTONE_OUT_OF_PAGES), "out of pages") == 0);
  CHECK(strcmp(packstone_status_name(12345), "unknown status") == 0);

  /* NULL wherever there may be one, sizes that cannot be. */
  CHECK(packstone_manager_create(NULL, &manager) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_manager_create(&options, NULL) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_manager_append(NULL, 0, 1) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_last_error(NULL) == PACKSTONE_INVALID_ARGUMENT);
  options.size = 0;
  CHECK(packstone_manager_create(&options, &manager) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(strstr(packstone_last_error_message(), "size") != NULL);
  options.size = sizeof options;
  options.policy = "best";
  CHECK(packstone_manager_create(&options, &manager) == PACKSTONE_INVALID_ARGUMENT);
  options.policy = NULL;
  options.pages = (int64_t)1 << 40;
  CHECK(packstone_manager_create(&options, &manager) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(manager == NULL);

  /* A struct of a later version: accepted while what this version does not know is zero. */
  memset(newer, 0, sizeof newer);
  newer[0].size = sizeof newer;
  newer[0].pages = 8;
  CHECK(packstone_manager_create(&newer[0], &manager) == PACKSTONE_OK);
  packstone_manager_destroy(manager);
  manager = NULL;
  newer[1].pages = 1;
  CHECK(packstone_manager_create(&newer[0], &manager) == PACKSTONE_INVALID_ARGUMENT);
  /* One of an earlier version gets as much as it has room for. */
  CHECK(packstone_last_error((packstone_error*)(void*)&older) == PACKSTONE_OK);
  CHECK(older.status == PACKSTONE_INVALID_ARGUMENT && older.size == sizeof older);
  packstone_manager_destroy(NULL);
  packstone_allocator_destroy(NULL);
  packstone_checkpoint_destroy(NULL);
}

static void test_allocator(void) {
  packstone_allocator_options options = {.size = sizeof options, .pages = 9, .policy = "fifo"};
  packstone_allocator* allocator = NULL;
  int32_t pages[8];
  int64_t freed = -1;
  int64_t available = -1;
  CHECK(packstone_allocator_create(&options, &allocator) == PACKSTONE_OK);
  CHECK(packstone_allocator_alloc(allocator, 7, -1, pages, 8) == PACKSTONE_OK);
  CHECK(pages[0] == 1 && pages[7] == 8);
  CHECK(packstone_allocator_alloc(allocator, 7, -1, pages, 1) == PACKSTONE_OUT_OF_PAGES);
  CHECK(packstone_allocator_retain(allocator, pages, 2) == PACKSTONE_OK);
  CHECK(packstone_allocator_free(allocator, pages, 8, &freed) == PACKSTONE_OK && freed == 6);
  CHECK(packstone_allocator_free(allocator, pages + 2, 1, NULL) == PACKSTONE_PAGE_ERROR);
  CHECK(last_error().page == 3 && last_error().owner == 7 && last_error().node == -1);
  CHECK(packstone_allocator_pin(allocator, 1) == PACKSTONE_OK);
  CHECK(packstone_allocator_unpin(allocator, 1) == PACKSTONE_OK);
  CHECK(packstone_allocator_unpin(allocator, 1) == PACKSTONE_PAGE_ERROR);
  CHECK(packstone_allocator_available(allocator, &available) == PACKSTONE_OK && available == 6);
  CHECK(packstone_allocator_alloc(allocator, 0, 99, pages, 1) == PACKSTONE_PAGE_ERROR);
  CHECK(packstone_allocator_check(allocator) == PACKSTONE_OK);
  CHECK(packstone_allocator_clear(allocator) == PACKSTONE_OK);
  CHECK(packstone_allocator_available(allocator, &available) == PACKSTONE_OK && available == 8);
  packstone_allocator_destroy(allocator);
}

static void test_sequences(void) {
  packstone_manager* manager = new_manager(17, 4, "fifo");
  packstone_seq a = 0;
  packstone_seq b = 0;
  packstone_seq c = 0;
  packstone_seq pair[2];
  packstone_growth growths[2];
  packstone_create_options with_prefix = {.size = sizeof with_prefix, .owner = 5};
  packstone_page_copy copies[4];
  packstone_page_move move;
  packstone_table_patch patch;
  int64_t slots[16];
  int64_t length = 0;
  int64_t capacity = 0;
  int64_t pages_out = 0;
  int32_t table[16];
  size_t count = 0;
  int alive = 0;

  CHECK(packstone_manager_open(manager, NULL, &a) == PACKSTONE_OK);
  CHECK(packstone_manager_append(manager, a, 8) == PACKSTONE_OK);
  CHECK(packstone_manager_append(manager, a, 1000) == PACKSTONE_OUT_OF_PAGES);
  CHECK(packstone_manager_append(manager, a, -1) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_manager_table(manager, a, table, 1, &count) == PACKSTONE_BUFFER_TOO_SMALL);
  CHECK(count == 2);
  CHECK(packstone_manager_table(manager, a, table, 16, &count) == PACKSTONE_OK);
  CHECK(count == 2 && table[0] == 1 && table[1] == 2);

  /* A second sequence that shares both full pages, and a third that is a fork. */
  with_prefix.prefix = table;
  with_prefix.prefix_pages = 2;
  CHECK(packstone_manager_open(manager, &with_prefix, &b) == PACKSTONE_OK);
  CHECK(packstone_manager_length(manager, b, &length, &capacity) == PACKSTONE_OK);
  CHECK(length == 8 && capacity == 8);
  growths[0].seq = a;
  growths[0].length = 10;
  growths[1].seq = b;
  growths[1].length = 9;
  CHECK(packstone_manager_extend(manager, growths, 2, slots, 2) == PACKSTONE_BUFFER_TOO_SMALL);
  CHECK(packstone_manager_extend(manager, growths, 2, slots, 3) == PACKSTONE_OK);
  CHECK(slots[0] == 12 && slots[1] == 13 && slots[2] == 16);
  pair[0] = a;
  pair[1] = b;
  CHECK(packstone_manager_decode(manager, pair, 2, slots) == PACKSTONE_OK);
  CHECK(slots[0] == 14 && slots[1] == 17);
  CHECK(packstone_manager_decode(manager, pair, 2, NULL) == PACKSTONE_OK);
  CHECK(packstone_manager_slots(manager, a, 7, 3, slots) == PACKSTONE_OK);
  CHECK(slots[0] == 11 && slots[1] == 12 && slots[2] == 13);
  CHECK(packstone_manager_slots(manager, a, 7, 99, slots) == PACKSTONE_INVALID_ARGUMENT);

  CHECK(packstone_manager_fork(manager, b, 10, &c) == PACKSTONE_OK);
  CHECK(packstone_manager_append(manager, c, 1) == PACKSTONE_OK);
  CHECK(packstone_manager_take_copies(manager, copies, 0, &count) == PACKSTONE_BUFFER_TOO_SMALL);
  CHECK(count == 1);
  move.from = 3;
  move.to = 9;
  CHECK(packstone_manager_apply(manager, &move, 1, NULL, 0, 1) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_manager_take_copies(manager, copies, 4, &count) == PACKSTONE_OK);
  CHECK(count == 1 && copies[0].from == 4 && copies[0].to == 5 && copies[0].tokens == 2);
  CHECK(packstone_manager_take_copies(manager, NULL, 0, &count) == PACKSTONE_OK && count == 0);

  /* Drafts: room without length, of which two tokens are kept. */
  CHECK(packstone_manager_reserve(manager, a, 6) == PACKSTONE_OK);
  CHECK(packstone_manager_commit(manager, a, 2) == PACKSTONE_OK);
  CHECK(packstone_manager_commit(manager, a, 999) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_manager_trim(manager, a, &pages_out) == PACKSTONE_OK && pages_out == 1);
  CHECK(packstone_manager_truncate(manager, a, 9) == PACKSTONE_OK);
  CHECK(packstone_manager_length(manager, a, &length, NULL) == PACKSTONE_OK && length == 9);

  /* A move, refused while the page is pinned, and the page it leaves. */
  patch.seq = a;
  patch.index = 2;
  patch.move = move;
  CHECK(packstone_manager_pin(manager, a, 2, 1) == PACKSTONE_OK);
  CHECK(packstone_manager_apply(manager, &move, 1, &patch, 1, 1) == PACKSTONE_PAGE_ERROR);
  CHECK(packstone_manager_unpin(manager, a, 2, 1) == PACKSTONE_OK);
  CHECK(packstone_manager_apply(manager, &move, 1, &patch, 1, 1) == PACKSTONE_OK);
  CHECK(statistics_of(manager).retired == 1);
  CHECK(packstone_manager_reclaim(manager, 0, &pages_out) == PACKSTONE_OK && pages_out == 0);
  CHECK(packstone_manager_reclaim(manager, 1, &pages_out) == PACKSTONE_OK && pages_out == 1);

  CHECK(packstone_manager_retain(manager, table, 1) == PACKSTONE_OK);
  CHECK(packstone_manager_check(manager, NULL, 0) == PACKSTONE_INVARIANT_ERROR);
  CHECK(packstone_manager_check(manager, table, 1) == PACKSTONE_OK);
  CHECK(packstone_manager_release(manager, table, 1) == PACKSTONE_OK);
  CHECK(packstone_manager_check(manager, NULL, 0) == PACKSTONE_OK);

  CHECK(packstone_manager_sequences(manager, pair, 2, &count) == PACKSTONE_BUFFER_TOO_SMALL);
  CHECK(count == 3);
  CHECK(packstone_manager_finish(manager, c) == PACKSTONE_OK);
  CHECK(packstone_manager_finish(manager, c) == PACKSTONE_SEQUENCE_ERROR);
  CHECK(last_error().seq == c);
  CHECK(packstone_manager_sequences(manager, pair, 2, &count) == PACKSTONE_OK && count == 2);
  CHECK(packstone_manager_alive(manager, c, &alive) == PACKSTONE_OK && alive == 0);
  CHECK(packstone_manager_alive(manager, a, &alive) == PACKSTONE_OK && alive == 1);
  CHECK(statistics_of(manager).sequences == 2 && statistics_of(manager).forks == 1);
  packstone_manager_destroy(manager);
}

static void test_checkpoint(void) {
  packstone_manager* manager = new_manager(9, 16, NULL);
  packstone_manager* other = new_manager(9, 16, NULL);
  packstone_manager* smaller = new_manager(2, 16, NULL);
  packstone_checkpoint* checkpoint = NULL;
  packstone_seq seq = 0;
  uint64_t before = 0;
  uint64_t after = 0;
  int64_t length = 0;
  CHECK(packstone_manager_open(manager, NULL, &seq) == PACKSTONE_OK);
  CHECK(packstone_manager_append(manager, seq, 40) == PACKSTONE_OK);
  CHECK(packstone_manager_checkpoint(manager, &checkpoint) == PACKSTONE_OK);
  CHECK(packstone_manager_digest(manager, &before) == PACKSTONE_OK);
  CHECK(packstone_manager_append(manager, seq, 40) == PACKSTONE_OK);
  CHECK(packstone_manager_digest(manager, &after) == PACKSTONE_OK && after != before);
  CHECK(packstone_manager_restore(other, checkpoint) == PACKSTONE_OK);
  CHECK(packstone_manager_digest(other, &after) == PACKSTONE_OK && after == before);
  CHECK(packstone_manager_length(other, seq, &length, NULL) == PACKSTONE_OK && length == 40);
  CHECK(packstone_manager_restore(smaller, checkpoint) == PACKSTONE_INVALID_ARGUMENT);
  packstone_checkpoint_destroy(checkpoint);
  packstone_manager_destroy(manager);
  packstone_manager_destroy(other);
  packstone_manager_destroy(smaller);
}

/* One GQA head of width 64 over two prefix tokens and one query token, fp16 bits written by hand: q
 * = 0, so all three tokens weigh the same, and V is 1, 2 and 3 in every place. */
static void test_verify(void) {
  enum { dim = 64 };
  static uint16_t q[dim], k[4 * dim], v[4 * dim];
  static float out[dim];
  const uint16_t values[4] = {0, 0x3c00, 0x4000, 0x4200};
  const int32_t prefix_lens[1] = {2};
  const int32_t q_indptr[2] = {0, 1};
  const int32_t table[3] = {1, 2, 3};
  float lse = 0;
  float parts_out[2] = {1.0F, 3.0F};
  float parts_lse[2] = {0.0F, 0.0F};
  float merged_out = 0;
  float merged_lse = 0;
  packstone_verify_params params;
  int i;
  for (i = 0; i < 4 * dim; ++i) v[i] = values[i / dim];
  memset(&params, 0, sizeof params);
  params.size = sizeof params;
  params.kind = PACKSTONE_GQA;
  params.heads = 1;
  params.kv_heads = 1;
  params.head_dim_k = dim;
  params.head_dim_v = dim;
  params.batch = 1;
  params.tokens = 1;
  params.prefix_lens = prefix_lens;
  params.q_indptr = q_indptr;
  params.q = q;
  params.q_type = PACKSTONE_FP16;
  params.kv_type = PACKSTONE_KV_FP16;
  params.q_stride_token = 2 * dim;
  params.q_stride_head = 2 * dim;
  params.pool.k = k;
  params.pool.v = v;
  params.pool.k_stride_row = 2 * dim;
  params.pool.v_stride_row = 2 * dim;
  params.pool.rows = 4;
  params.table = table;
  params.table_stride = 3;
  params.page_size = 1;
  params.scale = 1.0F;
  params.out = out;
  params.out_type = PACKSTONE_FP32;
  params.out_stride_token = 4 * dim;
  params.out_stride_head = 4 * dim;
  params.lse = &lse;
  params.lse_stride_token = 4;
  CHECK(packstone_reference_verify(&params, 1) == PACKSTONE_OK);
  CHECK(fabs((double)out[0] - 2.0) < 1e-6 && fabs((double)out[dim - 1] - 2.0) < 1e-6);
  CHECK(fabs((double)lse - log(3.0)) < 1e-6);
  params.kind = 7;
  CHECK(packstone_reference_verify(&params, 1) == PACKSTONE_INVALID_ARGUMENT);
  params.kind = PACKSTONE_GQA;
  params.table_stride = 2;
  CHECK(packstone_reference_verify(&params, 1) == PACKSTONE_INVALID_ARGUMENT);

  CHECK(packstone_reference_merge(parts_out, parts_lse, 2, 1, 1, &merged_out, &merged_lse) ==
        PACKSTONE_OK);
  CHECK(fabs((double)merged_out - 2.0) < 1e-6 && fabs((double)merged_lse - log(2.0)) < 1e-6);
  CHECK(packstone_reference_merge(NULL, NULL, 0, 1, 1, NULL, NULL) == PACKSTONE_INVALID_ARGUMENT);
}

static void test_plan(void) {
  packstone_manager* manager = new_manager(33, 1, "fifo");
  packstone_plan_options options = {.size = sizeof options, .objective = PACKSTONE_FRONTIER};
  packstone_plan_summary summary = {.size = sizeof summary};
  packstone_plan* plan = NULL;
  packstone_seq kept = 0;
  packstone_seq gone = 0;
  packstone_page_move moves[8];
  packstone_table_patch patches[8];
  packstone_read_weight weight = {0, 3};
  int32_t held[1] = {1};
  size_t count = 0;
  int64_t freed = 0;
  CHECK(packstone_manager_open(manager, NULL, &gone) == PACKSTONE_OK);
  CHECK(packstone_manager_append(manager, gone, 6) == PACKSTONE_OK);
  CHECK(packstone_manager_open(manager, NULL, &kept) == PACKSTONE_OK);
  CHECK(packstone_manager_append(manager, kept, 4) == PACKSTONE_OK);
  CHECK(packstone_manager_finish(manager, gone) == PACKSTONE_OK);
  weight.seq = kept;
  options.weights = &weight;
  options.weight_count = 1;
  options.held = held;
  options.held_count = 1;
  CHECK(packstone_manager_plan(manager, &options, &plan) == PACKSTONE_OK);
  CHECK(packstone_plan_summarize(plan, &summary) == PACKSTONE_OK);
  CHECK(summary.moves == 4 && summary.patches == 4);
  CHECK(summary.frontier_before == 10 && summary.frontier_after == 5);
  CHECK(strcmp(summary.reason, "planned") == 0);
  CHECK(packstone_plan_moves(plan, moves, 3, &count) == PACKSTONE_BUFFER_TOO_SMALL && count == 4);
  CHECK(packstone_plan_moves(plan, moves, 8, &count) == PACKSTONE_OK && count == 4);
  CHECK(moves[0].from == 7 && moves[0].to == 2);
  CHECK(packstone_plan_patches(plan, patches, 8, &count) == PACKSTONE_OK && count == 4);
  CHECK(patches[3].seq == kept && patches[3].index == 3 && patches[3].move.to == 5);
  CHECK(packstone_manager_apply_plan(manager, plan, 1) == PACKSTONE_OK);
  CHECK(packstone_manager_apply_plan(manager, plan, 1) == PACKSTONE_PAGE_ERROR);
  CHECK(packstone_manager_reclaim(manager, 1, &freed) == PACKSTONE_OK && freed == 4);
  CHECK(packstone_manager_check(manager, NULL, 0) == PACKSTONE_OK);
  packstone_plan_destroy(plan);
  options.objective = 9;
  CHECK(packstone_manager_plan(manager, &options, &plan) == PACKSTONE_INVALID_ARGUMENT);
  packstone_plan_destroy(NULL);
  packstone_manager_destroy(manager);
}

static void test_draft(void) {
  packstone_manager* manager = new_manager(33, 4, "fifo");
  packstone_draft_request request = {0, 4};
  packstone_draft_commit commit = {.size = sizeof commit};
  packstone_tree* tree = NULL;
  packstone_seq seq = 0;
  packstone_slot_move moves[4];
  const int32_t parents[4] = {-1, 0, 0, 2};
  const int32_t path[3] = {0, 2, 3};
  const int32_t no_path[2] = {0, 3};
  const int32_t no_tree[2] = {-1, 1};
  int64_t positions[4];
  uint64_t words[4];
  int64_t slot = 0;
  size_t count = 0;
  CHECK(packstone_tree_create(no_tree, 2, &tree) == PACKSTONE_TREE_ERROR);
  CHECK(last_error().node == 1);
  CHECK(packstone_tree_create(parents, 4, &tree) == PACKSTONE_OK);
  CHECK(packstone_tree_positions(tree, 10, positions, 3) == PACKSTONE_BUFFER_TOO_SMALL);
  CHECK(packstone_tree_positions(tree, 10, positions, 4) == PACKSTONE_OK);
  CHECK(positions[0] == 10 && positions[1] == 11 && positions[2] == 11 && positions[3] == 12);
  CHECK(packstone_tree_mask(tree, words, 0) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_tree_mask(tree, words, 1) == PACKSTONE_OK);
  CHECK(words[0] == 1 && words[1] == 3 && words[2] == 5 && words[3] == 13);

  CHECK(packstone_manager_open(manager, NULL, &seq) == PACKSTONE_OK);
  CHECK(packstone_manager_append(manager, seq, 6) == PACKSTONE_OK);
  request.seq = seq;
  CHECK(packstone_manager_draft(manager, &request, 1) == PACKSTONE_OK);
  CHECK(packstone_manager_draft_slot(manager, seq, 0, &slot) == PACKSTONE_OK && slot == 10);
  CHECK(packstone_manager_draft_slot(manager, seq, 99, &slot) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_manager_accept(manager, PACKSTONE_TREE_FRONT, seq, tree, path, 3, moves, 2,
                                 &count, &commit) == PACKSTONE_BUFFER_TOO_SMALL);
  CHECK(packstone_manager_accept(manager, PACKSTONE_TREE_FRONT, seq, tree, no_path, 2, moves, 4,
                                 &count, &commit) == PACKSTONE_TREE_ERROR);
  CHECK(packstone_manager_accept(manager, 5, seq, tree, path, 3, moves, 4, &count, &commit) ==
        PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_manager_accept(manager, PACKSTONE_TREE_FRONT, seq, tree, path, 3, moves, 4,
                                 &count, &commit) == PACKSTONE_OK);
  CHECK(count == 2 && moves[0].from == 12 && moves[0].to == 11);
  CHECK(moves[1].from == 13 && moves[1].to == 12);
  CHECK(commit.length == 9 && commit.tail == 12 && commit.released == 0);
  CHECK(packstone_manager_check(manager, NULL, 0) == PACKSTONE_OK);
  packstone_tree_destroy(tree);
  packstone_tree_destroy(NULL);
  packstone_manager_destroy(manager);
}

static void test_prefix_cache(void) {
  packstone_manager* manager = new_manager(17, 2, "fifo");
  packstone_prefix_cache* cache = NULL;
  packstone_prefix_options options = {.size = sizeof options, .seed = 3};
  packstone_prefix_statistics statistics = {.size = sizeof statistics};
  const int64_t ids[5] = {11, 12, 13, 14, 15};
  packstone_prefix_key key = {.size = sizeof key, .ids = ids, .id_count = 5};
  packstone_page_move move = {1, 9};
  packstone_seq seq = 0;
  int32_t pages[8];
  uint64_t inserted = 0;
  uint64_t matched = 0;
  int64_t stored = 0;
  int64_t freed = 0;
  size_t count = 0;
  CHECK(packstone_prefix_cache_create(manager, &options, &cache) == PACKSTONE_OK);
  CHECK(packstone_manager_open(manager, NULL, &seq) == PACKSTONE_OK);
  CHECK(packstone_manager_append(manager, seq, 5) == PACKSTONE_OK);
  CHECK(packstone_manager_table(manager, seq, pages, 8, &count) == PACKSTONE_OK && count == 3);
  CHECK(packstone_prefix_cache_insert(cache, &key, pages, 1, 0, NULL, &inserted) ==
        PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_prefix_cache_insert(cache, &key, pages, 3, 0, &stored, &inserted) ==
        PACKSTONE_OK);
  CHECK(stored == 2);
  CHECK(packstone_prefix_cache_match(cache, &key, 1, pages, 1, &count, &matched) ==
        PACKSTONE_BUFFER_TOO_SMALL);
  CHECK(count == 2);
  CHECK(packstone_prefix_cache_match(cache, &key, 1, pages, 8, &count, &matched) == PACKSTONE_OK);
  CHECK(count == 2 && pages[0] == 1 && pages[1] == 2);
  key.salt = 1;
  CHECK(packstone_prefix_cache_match(cache, &key, 1, pages, 8, &count, &inserted) == PACKSTONE_OK);
  CHECK(count == 0);
  CHECK(packstone_prefix_cache_unlock(cache, 12345) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_prefix_cache_unlock(cache, matched) == PACKSTONE_OK);
  CHECK(packstone_prefix_cache_held(cache, pages, 8, &count) == PACKSTONE_OK && count == 2);
  CHECK(packstone_manager_check(manager, pages, count) == PACKSTONE_OK);
  CHECK(packstone_prefix_cache_statistics(cache, &statistics) == PACKSTONE_OK);
  CHECK(statistics.pages == 2 && statistics.lookups_hit == 1 && statistics.evictable == 0);
  CHECK(packstone_prefix_cache_evict(cache, 8, &freed) == PACKSTONE_OK && freed == 0);
  CHECK(packstone_manager_finish(manager, seq) == PACKSTONE_OK);
  {
    /* The cache's page moves with a plan of nobody's table. */
    CHECK(packstone_manager_apply(manager, &move, 1, NULL, 0, 1) == PACKSTONE_OK);
    CHECK(packstone_prefix_cache_remap(cache, &move, 1) == PACKSTONE_OK);
    CHECK(packstone_prefix_cache_held(cache, pages, 8, &count) == PACKSTONE_OK);
    CHECK(count == 2 && pages[0] == 2 && pages[1] == 9);
    CHECK(packstone_manager_reclaim(manager, 1, NULL) == PACKSTONE_OK);
  }
  packstone_prefix_cache_destroy(cache);
  packstone_prefix_cache_destroy(NULL);
  CHECK(statistics_of(manager).live == 0);
  CHECK(packstone_manager_check(manager, NULL, 0) == PACKSTONE_OK);
  packstone_manager_destroy(manager);
}

/* Without a device every one of these says so; with one the bounds alone are tested here. */
static void test_device(void) {
  packstone_attention_options options = {.size = sizeof options, .batch_max = 1};
  packstone_compactor_options pool = {.size = sizeof pool, .pages = 0, .page_size = 1};
  packstone_attention* attention = NULL;
  packstone_compactor* compactor = NULL;
  packstone_page_move move = {1, 2};
  int64_t bytes = -1;
  int queued = -1;
  const packstone_status status = packstone_attention_create(&options, &attention);
  CHECK(status == PACKSTONE_OK || status == PACKSTONE_UNSUPPORTED_DEVICE);
  CHECK((attention != NULL) == (status == PACKSTONE_OK));
  CHECK(packstone_has_cuda() == 1 || status == PACKSTONE_UNSUPPORTED_DEVICE);
  CHECK(packstone_attention_workspace(attention, NULL, &bytes) < 0 && bytes == -1);
  CHECK(packstone_attention_run(attention, NULL, NULL, 0, NULL) < 0);
  CHECK(packstone_attention_run_next_layer(attention, NULL, NULL, 0, NULL) < 0);
  packstone_attention_destroy(attention);
  packstone_attention_destroy(NULL);
  CHECK(packstone_compactor_create(&pool, &compactor) < 0 && compactor == NULL);
  CHECK(packstone_compactor_compact(NULL, &move, 1, NULL, &queued) < 0 && queued == -1);
  packstone_compactor_destroy(NULL);
}

/* Sizes and counts that no caller can mean: an error or a shortage, with nothing changed. */
static void test_hostile(void) {
  packstone_allocator_options pool = {.size = sizeof pool, .pages = 9, .page_size = INT64_MAX};
  packstone_manager_options options = {.size = SIZE_MAX, .pages = 9};
  packstone_statistics statistics = {.size = SIZE_MAX};
  packstone_allocator* allocator = NULL;
  packstone_manager* manager = NULL;
  packstone_tree* tree = NULL;
  packstone_growth growth = {0, INT64_MIN};
  const int32_t root = -1;
  int32_t pages[8] = {0};
  int64_t available = 0;
  int64_t length = 0;
  int64_t slots[4];
  CHECK(packstone_manager_create(&options, &manager) == PACKSTONE_INVALID_ARGUMENT);
  manager = new_manager(9, 4, NULL);
  CHECK(packstone_manager_statistics(manager, &statistics) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_allocator_create(&pool, &allocator) == PACKSTONE_INVALID_ARGUMENT);
  pool.page_size = 1;
  CHECK(packstone_allocator_create(&pool, &allocator) == PACKSTONE_OK);
  CHECK(packstone_allocator_alloc(allocator, 1, -1, pages, SIZE_MAX) == PACKSTONE_OUT_OF_PAGES);
  CHECK(packstone_allocator_alloc(allocator, 1, -1, pages, SIZE_MAX / 4) == PACKSTONE_OUT_OF_PAGES);
  CHECK(packstone_allocator_alloc(allocator, 1, -1, NULL, 1) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_allocator_available(allocator, &available) == PACKSTONE_OK && available == 8);
  CHECK(packstone_allocator_check(allocator) == PACKSTONE_OK);
  packstone_allocator_destroy(allocator);

  CHECK(packstone_manager_open(manager, NULL, &growth.seq) == PACKSTONE_OK);
  CHECK(packstone_manager_append(manager, growth.seq, 5) == PACKSTONE_OK);
  CHECK(packstone_manager_extend(manager, &growth, 1, slots, 4) == PACKSTONE_INVALID_ARGUMENT);
  growth.length = INT64_MAX;
  CHECK(packstone_manager_extend(manager, &growth, 1, slots, 4) == PACKSTONE_BUFFER_TOO_SMALL);
  CHECK(packstone_manager_extend(manager, &growth, 1, NULL, 0) == PACKSTONE_OUT_OF_PAGES);
  CHECK(packstone_manager_slots(manager, growth.seq, 0, SIZE_MAX, slots) ==
        PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_manager_pin(manager, growth.seq, 1, INT64_MAX) == PACKSTONE_INVALID_ARGUMENT);
  CHECK(packstone_manager_length(manager, growth.seq, &length, NULL) == PACKSTONE_OK);
  CHECK(length == 5);
  CHECK(packstone_manager_check(manager, NULL, 0) == PACKSTONE_OK);
  packstone_manager_destroy(manager);

  CHECK(packstone_tree_create(&root, SIZE_MAX, &tree) == PACKSTONE_TREE_ERROR);
  CHECK(packstone_tree_create(&root, 1, &tree) == PACKSTONE_OK);
  CHECK(packstone_tree_positions(tree, INT64_MAX, slots, 1) == PACKSTONE_INVALID_ARGUMENT);
  packstone_tree_destroy(tree);
}

int main(void) {
  test_border();
  test_hostile();
  test_allocator();
  test_sequences();
  test_checkpoint();
  test_plan();
  test_draft();
  test_prefix_cache();
  test_verify();
  test_device();
  if (failures == 0) printf("c_api_test: every check holds\n");
  return failures == 0 ? 0 : 1;
}
