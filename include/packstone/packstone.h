/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PACKSTONE_PACKSTONE_H
#define PACKSTONE_PACKSTONE_H

/**
 * @file
 * The C ABI of packstone: C99, no CUDA header needed.
 *
 * - Objects are opaque handles: made by `..._create`, ended by `..._destroy`, which accepts NULL. A
 *   handle is not thread-safe; different handles are independent.
 * - A call returns a status. 0 is success; positive is a shortage, which consumed nothing; negative
 *   is an error, which changed nothing, and whose words and particulars `packstone_last_error`
 *   tells to the thread that got it. No exception leaves the library.
 * - Structs begin with `size`, which the caller sets to sizeof the struct it was compiled with.
 *   Later versions only append members, and a zero there means what it meant before there was such
 *   a member. Types that stand in arrays (packstone_page_move and the like) never change.
 * - A result of unknown length goes to (buffer, capacity, *count): *count is set to what there is;
 *   when that exceeds capacity the call returns PACKSTONE_BUFFER_TOO_SMALL and changed nothing.
 * - Pages are int32 ids, page 0 is reserved; slots (page * page_size + offset) are int64. Pointers
 *   to arrays may be NULL where their count is 0.
 *
 * What the operations mean is said with the C++ classes: kv_manager.hpp, page_allocator.hpp,
 * move_plan.hpp, prefix_cache.hpp, draft_tree.hpp, verify_params.hpp.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(PACKSTONE_C_BUILD)
#define PACKSTONE_API __attribute__((visibility("default")))
#else
#define PACKSTONE_API
#endif

#define PACKSTONE_VERSION_MAJOR 0
#define PACKSTONE_VERSION_MINOR 1
#define PACKSTONE_VERSION_PATCH 0

typedef int32_t packstone_status;
enum {
  PACKSTONE_OK = 0,
  PACKSTONE_OUT_OF_PAGES = 1,
  PACKSTONE_OUT_OF_SEQUENCES = 2,
  PACKSTONE_INVALID_ARGUMENT = -1,
  PACKSTONE_PAGE_ERROR = -2,
  PACKSTONE_SEQUENCE_ERROR = -3,
  PACKSTONE_TREE_ERROR = -4,
  PACKSTONE_INVARIANT_ERROR = -5, /* a bug of the library, or memory written over */
  PACKSTONE_OUT_OF_HOST_MEMORY = -6,
  PACKSTONE_CUDA_ERROR = -7,
  PACKSTONE_UNSUPPORTED_DEVICE = -8, /* also: this library was built without CUDA */
  PACKSTONE_BUFFER_TOO_SMALL = -9,
  PACKSTONE_INTERNAL_ERROR = -10
};

/** Particulars of the last error of this thread. Members that do not apply are -1 or 0. */
typedef struct packstone_error {
  size_t size;
  packstone_status status; /* PACKSTONE_OK when there was none */
  int32_t page;            /* PACKSTONE_PAGE_ERROR: the page, else -1 */
  uint32_t owner;          /* PACKSTONE_PAGE_ERROR: its tag, else 0 */
  int64_t node;            /* PACKSTONE_TREE_ERROR: the node, else -1 */
  uint64_t seq;            /* PACKSTONE_SEQUENCE_ERROR: the handle, else 0 */
  const char* message;     /* valid until the next error of this thread; never NULL */
} packstone_error;

PACKSTONE_API const char* packstone_version(void);
/** 1 when the device half is in this library, else 0. */
PACKSTONE_API int packstone_has_cuda(void);
PACKSTONE_API const char* packstone_status_name(packstone_status status);
PACKSTONE_API packstone_status packstone_last_error(packstone_error* out);
PACKSTONE_API const char* packstone_last_error_message(void);

typedef struct packstone_page_move {
  int32_t from, to;
} packstone_page_move;

typedef struct packstone_slot_move {
  int64_t from, to;
} packstone_slot_move;

/** A sequence of a manager: place in the low, generation in the high 32 bits. */
typedef uint64_t packstone_seq;

/* ---- pages for whoever keeps its own tables (PageAllocator) ---- */

typedef struct packstone_allocator packstone_allocator;

typedef struct packstone_allocator_options {
  size_t size;
  int64_t pages;      /* of the pool, page 0 included */
  int64_t page_size;  /* slots a page; 0: 1 */
  const char* policy; /* fifo, lifo, sorted, lowest, run; NULL: run */
} packstone_allocator_options;

PACKSTONE_API packstone_status
packstone_allocator_create(const packstone_allocator_options* options, packstone_allocator** out);
PACKSTONE_API void packstone_allocator_destroy(packstone_allocator* allocator);
/** Pages that can be had now. */
PACKSTONE_API packstone_status packstone_allocator_available(const packstone_allocator* allocator,
                                                             int64_t* pages);
/** Fills pages[0 .. count) with pages of one reference each. `after`: the page to continue, or
 * -1. */
PACKSTONE_API packstone_status packstone_allocator_alloc(packstone_allocator* allocator,
                                                         uint32_t owner, int32_t after,
                                                         int32_t* pages, size_t count);
/** One more reference each. */
PACKSTONE_API packstone_status packstone_allocator_retain(packstone_allocator* allocator,
                                                          const int32_t* pages, size_t count);
/** One reference less each. `freed` may be NULL, else is set to how many pages became free. */
PACKSTONE_API packstone_status packstone_allocator_free(packstone_allocator* allocator,
                                                        const int32_t* pages, size_t count,
                                                        int64_t* freed);
PACKSTONE_API packstone_status packstone_allocator_pin(packstone_allocator* allocator,
                                                       int32_t page);
PACKSTONE_API packstone_status packstone_allocator_unpin(packstone_allocator* allocator,
                                                         int32_t page);
PACKSTONE_API packstone_status packstone_allocator_check(const packstone_allocator* allocator);
PACKSTONE_API packstone_status packstone_allocator_clear(packstone_allocator* allocator);

/* ---- sequences (KvManager) ---- */

typedef struct packstone_manager packstone_manager;
typedef struct packstone_checkpoint packstone_checkpoint;

typedef struct packstone_manager_options {
  size_t size;
  int64_t pages;
  int64_t page_size;     /* 0: 1 */
  const char* policy;    /* NULL: run */
  int64_t sequences_max; /* live at a time; 0: 2^31 - 1 */
} packstone_manager_options;

typedef struct packstone_create_options {
  size_t size;
  uint32_t owner;          /* tag of its pages; 0: its place + 1 */
  int64_t expected_tokens; /* length it will come to; 0: unknown */
  const int32_t* prefix;   /* [prefix_pages] full pages to share, whoever holds them */
  size_t prefix_pages;
} packstone_create_options;

typedef struct packstone_growth {
  packstone_seq seq;
  int64_t length; /* to, not by */
} packstone_growth;

/** Copy the first `tokens` slots of every buffer before the next write to `to`. */
typedef struct packstone_page_copy {
  int32_t from, to;
  int64_t tokens;
} packstone_page_copy;

typedef struct packstone_table_patch {
  packstone_seq seq;
  int64_t index;
  packstone_page_move move;
} packstone_table_patch;

typedef struct packstone_statistics {
  size_t size;
  int64_t pages, page_size, free, reserved, live, retired, held, pinned, available;
  int64_t sequences, sequences_created, sequences_finished, forks;
  int64_t pages_allocated, pages_released, pages_moved, copies_on_write, shortages;
} packstone_statistics;

PACKSTONE_API packstone_status packstone_manager_create(const packstone_manager_options* options,
                                                        packstone_manager** out);
PACKSTONE_API void packstone_manager_destroy(packstone_manager* manager);

/** `options` may be NULL. */
PACKSTONE_API packstone_status packstone_manager_open(packstone_manager* manager,
                                                      const packstone_create_options* options,
                                                      packstone_seq* out);
PACKSTONE_API packstone_status packstone_manager_append(packstone_manager* manager,
                                                        packstone_seq seq, int64_t tokens);
/** @param slots NULL, or [slot_capacity], which must hold the sum of the growths. */
PACKSTONE_API packstone_status packstone_manager_extend(packstone_manager* manager,
                                                        const packstone_growth* batch, size_t count,
                                                        int64_t* slots, size_t slot_capacity);
/** @param slots NULL, or [count]: the slot of each new token. */
PACKSTONE_API packstone_status packstone_manager_decode(packstone_manager* manager,
                                                        const packstone_seq* batch, size_t count,
                                                        int64_t* slots);
PACKSTONE_API packstone_status packstone_manager_reserve(packstone_manager* manager,
                                                         packstone_seq seq, int64_t tokens);
PACKSTONE_API packstone_status packstone_manager_commit(packstone_manager* manager,
                                                        packstone_seq seq, int64_t tokens);
/** `released` may be NULL. */
PACKSTONE_API packstone_status packstone_manager_trim(packstone_manager* manager, packstone_seq seq,
                                                      int64_t* released);
PACKSTONE_API packstone_status packstone_manager_truncate(packstone_manager* manager,
                                                          packstone_seq seq, int64_t length);
PACKSTONE_API packstone_status packstone_manager_fork(packstone_manager* manager,
                                                      packstone_seq parent, int64_t tokens,
                                                      packstone_seq* out);
PACKSTONE_API packstone_status packstone_manager_finish(packstone_manager* manager,
                                                        packstone_seq seq);
PACKSTONE_API packstone_status packstone_manager_take_copies(packstone_manager* manager,
                                                             packstone_page_copy* copies,
                                                             size_t capacity, size_t* count);

PACKSTONE_API packstone_status packstone_manager_alive(const packstone_manager* manager,
                                                       packstone_seq seq, int* alive);
/** Each of the two may be NULL. In tokens. */
PACKSTONE_API packstone_status packstone_manager_length(const packstone_manager* manager,
                                                        packstone_seq seq, int64_t* length,
                                                        int64_t* capacity);
PACKSTONE_API packstone_status packstone_manager_table(const packstone_manager* manager,
                                                       packstone_seq seq, int32_t* pages,
                                                       size_t capacity, size_t* count);
/** Slots of tokens [first, first + count). */
PACKSTONE_API packstone_status packstone_manager_slots(const packstone_manager* manager,
                                                       packstone_seq seq, int64_t first,
                                                       size_t count, int64_t* slots);
PACKSTONE_API packstone_status packstone_manager_sequences(const packstone_manager* manager,
                                                           packstone_seq* seqs, size_t capacity,
                                                           size_t* count);

/** Pages [first, first + count) of the table stay where they are until unpinned. */
PACKSTONE_API packstone_status packstone_manager_pin(packstone_manager* manager, packstone_seq seq,
                                                     int64_t first, int64_t count);
PACKSTONE_API packstone_status packstone_manager_unpin(packstone_manager* manager,
                                                       packstone_seq seq, int64_t first,
                                                       int64_t count);
/** References to pages from outside the tables: shared, as the prefix of later sequences. */
PACKSTONE_API packstone_status packstone_manager_retain(packstone_manager* manager,
                                                        const int32_t* pages, size_t count);
PACKSTONE_API packstone_status packstone_manager_release(packstone_manager* manager,
                                                         const int32_t* pages, size_t count);

/** Refused while copies found by take_copies did not fit its buffer and still wait. */
PACKSTONE_API packstone_status packstone_manager_apply(packstone_manager* manager,
                                                       const packstone_page_move* moves,
                                                       size_t move_count,
                                                       const packstone_table_patch* patches,
                                                       size_t patch_count, uint64_t epoch);
/** `freed` may be NULL. */
PACKSTONE_API packstone_status packstone_manager_reclaim(packstone_manager* manager,
                                                         uint64_t reached, int64_t* freed);

PACKSTONE_API packstone_status packstone_manager_statistics(const packstone_manager* manager,
                                                            packstone_statistics* out);
PACKSTONE_API packstone_status packstone_manager_digest(const packstone_manager* manager,
                                                        uint64_t* digest);
/** @param held  [count] pages with references that no table or pin has, as often as held. */
PACKSTONE_API packstone_status packstone_manager_check(const packstone_manager* manager,
                                                       const int32_t* held, size_t count);
PACKSTONE_API packstone_status packstone_manager_checkpoint(const packstone_manager* manager,
                                                            packstone_checkpoint** out);
PACKSTONE_API packstone_status packstone_manager_restore(packstone_manager* manager,
                                                         const packstone_checkpoint* checkpoint);
PACKSTONE_API void packstone_checkpoint_destroy(packstone_checkpoint* checkpoint);

/* ---- planner (move_plan.hpp) ---- */

typedef struct packstone_plan packstone_plan;

enum { PACKSTONE_FRONTIER = 0, PACKSTONE_STRAIGHTEN = 1, PACKSTONE_GRANULES = 2 };

typedef struct packstone_read_weight {
  packstone_seq seq;
  int64_t weight;
} packstone_read_weight;

/** Zeros are the defaults of PlanOptions, but for objective and steps. */
typedef struct packstone_plan_options {
  size_t size;
  int32_t objective;
  int32_t running; /* as the last plan's summary says */
  int64_t moves_max, bytes_max, bytes_per_page, keep_free, run_target;
  int64_t granule_bytes, granule_page_bytes;
  int64_t page_copy_ps, break_read_ps, steps_left;
  int64_t start_permille, stop_permille;
  const int32_t* held; /* [held_count] pages neither moved nor moved to */
  size_t held_count;
  const packstone_read_weight* weights; /* [weight_count] */
  size_t weight_count;
} packstone_plan_options;

typedef struct packstone_plan_summary {
  size_t size;
  int64_t moves, patches;
  int64_t runs_before, runs_after, frontier_before, frontier_after, granules_emptied;
  int64_t bytes, cost_ps, gain_ps, break_even_steps, lower_bound, fragmentation_permille;
  int32_t running;
  const char* reason; /* why there are no moves; a constant */
} packstone_plan_summary;

PACKSTONE_API packstone_status packstone_manager_plan(const packstone_manager* manager,
                                                      const packstone_plan_options* options,
                                                      packstone_plan** out);
PACKSTONE_API void packstone_plan_destroy(packstone_plan* plan);
PACKSTONE_API packstone_status packstone_plan_summarize(const packstone_plan* plan,
                                                        packstone_plan_summary* out);
PACKSTONE_API packstone_status packstone_plan_moves(const packstone_plan* plan,
                                                    packstone_page_move* moves, size_t capacity,
                                                    size_t* count);
PACKSTONE_API packstone_status packstone_plan_patches(const packstone_plan* plan,
                                                      packstone_table_patch* patches,
                                                      size_t capacity, size_t* count);
/** packstone_manager_apply of the plan's moves and patches. */
PACKSTONE_API packstone_status packstone_manager_apply_plan(packstone_manager* manager,
                                                            const packstone_plan* plan,
                                                            uint64_t epoch);

/* ---- draft trees (draft_tree.hpp, speculation.hpp) ---- */

typedef struct packstone_tree packstone_tree;

enum { PACKSTONE_ROLLBACK = 0, PACKSTONE_RESERVE_TAIL = 1, PACKSTONE_TREE_FRONT = 2 };

typedef struct packstone_draft_request {
  packstone_seq seq;
  int64_t nodes;
} packstone_draft_request;

typedef struct packstone_draft_commit {
  size_t size;
  int64_t length;   /* of the sequence now */
  int64_t tail;     /* slot of its last token, or -1 */
  int64_t released; /* pages that left the table */
} packstone_draft_commit;

/** @param parents  [nodes], -1 for the root, else a node before. At most 256 nodes. */
PACKSTONE_API packstone_status packstone_tree_create(const int32_t* parents, size_t nodes,
                                                     packstone_tree** out);
PACKSTONE_API void packstone_tree_destroy(packstone_tree* tree);
/** @param positions  [nodes]: prefix + depth. */
PACKSTONE_API packstone_status packstone_tree_positions(const packstone_tree* tree, int64_t prefix,
                                                        int64_t* positions, size_t count);
/** @param words  [nodes, stride], stride >= ceil(nodes / 64): the layout of mask words. */
PACKSTONE_API packstone_status packstone_tree_mask(const packstone_tree* tree, uint64_t* words,
                                                   int64_t stride);
/** Room for the nodes of every sequence, or of none. */
PACKSTONE_API packstone_status packstone_manager_draft(packstone_manager* manager,
                                                       const packstone_draft_request* batch,
                                                       size_t count);
/** Where node `node` of the sequence's drafts is written. */
PACKSTONE_API packstone_status packstone_manager_draft_slot(const packstone_manager* manager,
                                                            packstone_seq seq, int64_t node,
                                                            int64_t* slot);
/** Commits the path [path_count] of nodes from the root on. Rows to copy, in this order, go to
 * moves, which must have room for path_count. */
PACKSTONE_API packstone_status packstone_manager_accept(packstone_manager* manager, int32_t mode,
                                                        packstone_seq seq,
                                                        const packstone_tree* tree,
                                                        const int32_t* path, size_t path_count,
                                                        packstone_slot_move* moves, size_t capacity,
                                                        size_t* count, packstone_draft_commit* out);

/* ---- prefix sharing (prefix_cache.hpp) ---- */

typedef struct packstone_prefix_cache packstone_prefix_cache;

typedef struct packstone_prefix_options {
  size_t size;
  int64_t id_tokens; /* tokens that one id stands for; 0: 1 */
  uint64_t seed;
} packstone_prefix_options;

typedef struct packstone_prefix_key {
  size_t size;
  const int64_t* ids; /* [id_count] */
  size_t id_count;
  int64_t tokens; /* 0: all of them */
  uint64_t adapter, salt;
} packstone_prefix_key;

typedef struct packstone_prefix_statistics {
  size_t size;
  int64_t pages, evictable, lookups, lookups_hit, tokens_asked, tokens_hit, pages_stored;
  int64_t pages_evicted;
} packstone_prefix_statistics;

/** The manager must outlive the cache. `options` may be NULL. */
PACKSTONE_API packstone_status
packstone_prefix_cache_create(packstone_manager* manager, const packstone_prefix_options* options,
                              packstone_prefix_cache** out);
/** Gives back the references that the cache holds. */
PACKSTONE_API void packstone_prefix_cache_destroy(packstone_prefix_cache* cache);
/** The longest cached prefix that leaves tokens_left tokens to compute; locked until unlocked.
 * pages must have room for the full pages of the key. */
PACKSTONE_API packstone_status packstone_prefix_cache_match(packstone_prefix_cache* cache,
                                                            const packstone_prefix_key* key,
                                                            int64_t tokens_left, int32_t* pages,
                                                            size_t capacity, size_t* count,
                                                            uint64_t* lock);
/** Stores the full pages of the key, from the table of a sequence. `stored` may be NULL. */
PACKSTONE_API packstone_status packstone_prefix_cache_insert(packstone_prefix_cache* cache,
                                                             const packstone_prefix_key* key,
                                                             const int32_t* pages, size_t count,
                                                             int32_t priority, int64_t* stored,
                                                             uint64_t* lock);
PACKSTONE_API packstone_status packstone_prefix_cache_unlock(packstone_prefix_cache* cache,
                                                             uint64_t lock);
/** Frees up to `pages` pages; `freed` may be NULL. */
PACKSTONE_API packstone_status packstone_prefix_cache_evict(packstone_prefix_cache* cache,
                                                            int64_t pages, int64_t* freed);
/** Tells the cache of moves that were applied. */
PACKSTONE_API packstone_status packstone_prefix_cache_remap(packstone_prefix_cache* cache,
                                                            const packstone_page_move* moves,
                                                            size_t count);
/** What packstone_manager_check takes. */
PACKSTONE_API packstone_status packstone_prefix_cache_held(const packstone_prefix_cache* cache,
                                                           int32_t* pages, size_t capacity,
                                                           size_t* count);
PACKSTONE_API packstone_status packstone_prefix_cache_statistics(
    const packstone_prefix_cache* cache, packstone_prefix_statistics* out);

/* ---- attention on the CPU (reference_verify.hpp) ---- */

typedef struct packstone_rows {
  const void* k;
  const void* k_rope; /* NULL: behind the latent part, or none */
  const void* v;      /* NULL for MLA */
  int64_t k_stride_row, k_rope_stride_row, v_stride_row, k_stride_head, v_stride_head; /* bytes */
  int64_t rows;
} packstone_rows;

enum { PACKSTONE_BF16 = 0, PACKSTONE_FP16 = 1, PACKSTONE_FP32 = 2 };
enum { PACKSTONE_KV_BF16 = 0, PACKSTONE_KV_FP16 = 1, PACKSTONE_KV_E4M3 = 2, PACKSTONE_KV_TILE = 3 };
enum { PACKSTONE_MLA = 0, PACKSTONE_GQA = 1 };
enum { PACKSTONE_CAUSAL = 0, PACKSTONE_PARENTS = 1, PACKSTONE_WORDS = 2, PACKSTONE_FULL = 3 };
enum { PACKSTONE_TAIL_POOL = 0, PACKSTONE_TAIL_SEPARATE = 1, PACKSTONE_TAIL_NONE = 2 };
enum { PACKSTONE_INT32 = 0, PACKSTONE_INT64 = 1 };
enum { PACKSTONE_LSE_NATURAL = 0, PACKSTONE_LSE_TWO = 1 };

/** VerifyParams of verify_params.hpp, member by member. Strides of tensors in bytes. */
typedef struct packstone_verify_params {
  size_t size;
  int32_t kind, heads, kv_heads, head_dim_k, head_dim_v, rope_dim;
  int32_t batch, tokens;
  const int32_t* prefix_lens; /* [batch] */
  const int32_t* q_indptr;    /* [batch + 1] */
  const void* q;              /* [tokens, heads, head_dim_k] */
  int64_t q_stride_token, q_stride_head;
  int32_t q_type, kv_type;
  packstone_rows pool;
  const void* table; /* [batch, table_stride] pages, or CSR by table_indptr */
  int64_t table_stride;
  const int32_t* table_indptr; /* [batch + 1] or NULL */
  int32_t table_type, page_size;
  int32_t tail_place, mask_kind;
  packstone_rows tail;
  const int32_t* parents; /* [tokens] */
  const uint64_t* words;  /* [tokens, words_stride] */
  int64_t words_stride;
  const int32_t* sparse; /* [tokens, sparse_stride] or NULL */
  int64_t sparse_stride;
  int32_t sparse_topk, sparse_of_slots; /* 0: entries are positions, 1: slots */
  float scale, logit_cap;
  float k_scale, v_scale; /* 0: 1 */
  void* out;              /* [tokens, heads, head_dim_v] */
  int64_t out_stride_token, out_stride_head;
  int32_t out_type, lse_base;
  float* lse; /* [tokens, heads] or NULL */
  int64_t lse_stride_token;
} packstone_verify_params;

/** @param threads 0: one a hardware thread. */
PACKSTONE_API packstone_status packstone_reference_verify(const packstone_verify_params* params,
                                                          int32_t threads);
/** Merges out [parts, rows, dim] and lse [parts, rows], natural base, into merged_out [rows, dim]
 * and merged_lse [rows]. */
PACKSTONE_API packstone_status packstone_reference_merge(const float* out, const float* lse,
                                                         int32_t parts, int64_t rows, int32_t dim,
                                                         float* merged_out, float* merged_lse);

/* ---- the device half (cuda/attention.hpp, cuda/compactor.hpp) ----
 * Calls are enqueued in order of the stream (a cudaStream_t) and do not synchronise; what they
 * point to must stay until the work is done. Without a device, or in a library built without CUDA,
 * they return PACKSTONE_UNSUPPORTED_DEVICE. */

struct CUstream_st;

typedef struct packstone_attention packstone_attention;
typedef struct packstone_compactor packstone_compactor;

typedef struct packstone_attention_options {
  size_t size;
  int32_t batch_max, tokens_max, q_len_max, length_max; /* static bounds of every call */
  int32_t splits;                                       /* 0: the schedule's choice */
  int32_t batch_invariant;
  int32_t split_tokens;
} packstone_attention_options;

/** One buffer of one layer in device memory. */
typedef struct packstone_plane {
  void* data;          /* page 0 */
  int64_t stride;      /* bytes between pages */
  int64_t token_bytes; /* bytes that a token keeps in it */
} packstone_plane;

enum {
  PACKSTONE_ARRAY_PAGES = 0,
  PACKSTONE_ARRAY_SLOTS = 1,
  PACKSTONE_ARRAY_KEYED_BY_PAGE = 2,
  PACKSTONE_ARRAY_KEYED_BY_SLOT = 3
};

/** An array in device memory that names pages or slots, and is rewritten by each step. */
typedef struct packstone_patched_array {
  void* entries;
  int64_t count;
  int32_t type; /* PACKSTONE_INT32 or PACKSTONE_INT64 */
  int32_t kind; /* PACKSTONE_ARRAY_... */
} packstone_patched_array;

typedef struct packstone_compactor_options {
  size_t size;
  int64_t pages, page_size;
  const packstone_plane* planes; /* [plane_count] of the caller's pool */
  size_t plane_count;
  const packstone_patched_array* arrays; /* [array_count] */
  size_t array_count;
  int64_t moves_max; /* of a step; 0: 4096 */
} packstone_compactor_options;

PACKSTONE_API packstone_status
packstone_attention_create(const packstone_attention_options* options, packstone_attention** out);
PACKSTONE_API void packstone_attention_destroy(packstone_attention* attention);
/** Bytes of device memory, 256-byte aligned, that packstone_attention_run needs. */
PACKSTONE_API packstone_status packstone_attention_workspace(const packstone_attention* attention,
                                                             const packstone_verify_params* params,
                                                             int64_t* bytes);
/** Tree verify with all pointers of params to device memory; capturable. */
PACKSTONE_API packstone_status packstone_attention_run(const packstone_attention* attention,
                                                       const packstone_verify_params* params,
                                                       void* workspace, int64_t workspace_bytes,
                                                       struct CUstream_st* stream);
/** The same with the schedule that the call before with this workspace made: for the layers of a
 * model after the first. Shape, lengths, mask and where sequences begin in the table must be those
 * of that call (ScheduleUse::reuse of verify_params.hpp). */
PACKSTONE_API packstone_status packstone_attention_run_next_layer(
    const packstone_attention* attention, const packstone_verify_params* params, void* workspace,
    int64_t workspace_bytes, struct CUstream_st* stream);
PACKSTONE_API packstone_status
packstone_compactor_create(const packstone_compactor_options* options, packstone_compactor** out);
PACKSTONE_API void packstone_compactor_destroy(packstone_compactor* compactor);
/** Copies the pages and patches the arrays. *queued is 0, and nothing was done, when too many steps
 * are in flight: try again later. Record an event afterwards; once it has been reached, reclaim. */
PACKSTONE_API packstone_status packstone_compactor_compact(packstone_compactor* compactor,
                                                           const packstone_page_move* moves,
                                                           size_t count, struct CUstream_st* stream,
                                                           int* queued);

#ifdef __cplusplus
}
#endif

#endif
