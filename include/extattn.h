/*
 * extattn: extend attention, the attention of prefill with a KV cache.
 *
 * New tokens attend to a cached prefix in a paged pool and to themselves. This is
 * the whole public interface; it is C99 and may be included from C++.
 *
 *     ea_context *ctx;                       a device: the CPU, or one GPU
 *     ea_plan *plan;                         what will run there for one kind of call, and why
 *     ea_problem problem = EA_PROBLEM_INIT;  the kind of call: types, heads, dimensions, options
 *     ea_batch batch = EA_BATCH_INIT;        one call: tensors, strides, index arrays
 *
 *     ea_context_create(NULL, &ctx);
 *     ea_plan_create(ctx, &problem, NULL, &plan);
 *     ea_workspace_size(plan, &batch, &bytes);
 *     ea_run(plan, &batch, workspace, bytes, NULL);
 *
 * Names of shapes, as in the whole project: B sequences, T new tokens in all of them,
 * Hq query heads and Hkv key/value heads (query head h reads key/value head
 * h / (Hq/Hkv)), D the head dimension of q and k, Dv that of v and out, S cache slots,
 * P the prefix length of one sequence and E the number of its new tokens.
 *
 * Growing without breaking: every struct that is handed to a function by its address begins
 * with struct_size. (ea_tensor and ea_cache, which lie inside others, have none and never
 * grow.) Start from its EA_..._INIT, which sets it and the defaults; fields that a later
 * version adds keep their defaults for a caller compiled before them. A struct larger than the
 * running library knows is taken where all that it does not know is zero, else it is
 * EA_ERR_INVALID; of one that the library fills, the rest stays as it was.
 *
 * Threads: a context and a plan may be used by any number of threads at once; creating
 * and destroying one is not to overlap with its use. ea_last_error() is per thread.
 */
#ifndef EXTATTN_H
#define EXTATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The one place where the version is written; the build reads it here. The soname
 * carries EA_VERSION_MAJOR, or 0.EA_VERSION_MINOR while the major version is 0. */
#define EA_VERSION_MAJOR 0
#define EA_VERSION_MINOR 1
#define EA_VERSION_PATCH 0

#ifndef EA_API
#if defined(__GNUC__) && defined(EA_BUILDING_LIBRARY)
#define EA_API __attribute__((visibility("default")))
#else
#define EA_API
#endif
#endif

/* "0.1.0": the version of the library that is running, not of this header. */
EA_API const char *ea_version(void);

/* ------------------------------------------------------------------------------------
 * Errors
 * ---------------------------------------------------------------------------------- */

/*
 * What a call returns. Anything but EA_OK leaves the outputs untouched, and
 * ea_last_error() then says in one line which argument it was, what was found and what
 * is allowed.
 */
typedef enum ea_status {
  EA_OK = 0,
  EA_ERR_INVALID = 1,       /* an argument is wrong */
  EA_ERR_UNSUPPORTED = 2,   /* the argument is right, but this device or kernel family cannot do it */
  EA_ERR_NO_DEVICE = 3,     /* no such device, or no driver for it */
  EA_ERR_OUT_OF_MEMORY = 4, /* host or device memory */
  EA_ERR_DOES_NOT_FIT = 5,  /* the asked pipeline depth needs more shared memory than the device has */
  EA_ERR_DEVICE = 6,        /* the driver reported a failure */
  EA_ERR_INTERNAL = 7       /* a bug in the library */
} ea_status;

/* "EA_ERR_INVALID" and so on; "unknown status" for any other number. Never NULL. */
EA_API const char *ea_status_name(ea_status status);

/* The reason for this thread's last failed call; "" if none failed. Valid until the
 * thread's next call into the library. Never NULL. */
EA_API const char *ea_last_error(void);

/* ------------------------------------------------------------------------------------
 * Types
 * ---------------------------------------------------------------------------------- */

typedef enum ea_dtype {
  EA_DTYPE_NONE = 0, /* "as q" where a field says so */
  EA_F32 = 1,
  EA_F16 = 2,
  EA_BF16 = 3,
  EA_E4M3 = 4, /* 8-bit float, 4 exponent bits, finite values and NaN (OCP FP8 E4M3) */
  EA_E5M2 = 5, /* 8-bit float, 5 exponent bits, with Inf and NaN (OCP FP8 E5M2) */
  EA_I32 = 6,
  EA_I64 = 7
} ea_dtype;

/* Bytes of one element; 0 for EA_DTYPE_NONE and unknown values. */
EA_API size_t ea_dtype_size(ea_dtype dtype);
/* "bf16", "e4m3" and so on; "unknown" otherwise. Never NULL. */
EA_API const char *ea_dtype_name(ea_dtype dtype);

/* ------------------------------------------------------------------------------------
 * Context: a device
 * ---------------------------------------------------------------------------------- */

typedef enum ea_device_type { EA_DEVICE_CPU = 0, EA_DEVICE_CUDA = 1 } ea_device_type;

/* Instruction sets of the CPU backend, each including the ones before it except where
 * the processor says otherwise. AVX512 means F, BW, DQ and VL. */
typedef enum ea_isa {
  EA_ISA_AUTO = 0, /* what the environment variable EXTATTN_ISA names ("avx2" and so on), else the best
                      that this processor (and operating system) offers */
  EA_ISA_PORTABLE = 1,
  EA_ISA_AVX2 = 2,
  EA_ISA_AVX512 = 3,
  EA_ISA_AVX512_BF16 = 4,
  EA_ISA_AMX = 5
} ea_isa;

/* "avx512_bf16" and so on; "unknown" otherwise. Never NULL. */
EA_API const char *ea_isa_name(ea_isa isa);

typedef struct ea_context_options {
  size_t struct_size;
  ea_device_type device;  /* EA_DEVICE_CPU */
  int32_t device_ordinal; /* which GPU; 0 */
  int32_t num_threads;    /* CPU threads a run uses; 0: OpenMP's own choice */
  ea_isa isa;             /* CPU only; EA_ISA_AUTO. One that the processor lacks is EA_ERR_UNSUPPORTED */
} ea_context_options;

#define EA_CONTEXT_OPTIONS_INIT                                                                                        \
  { sizeof(ea_context_options), EA_DEVICE_CPU, 0, 0, EA_ISA_AUTO }

typedef struct ea_context ea_context;

/*
 * Opens a device. options may be NULL: the CPU. For CUDA the driver is opened at run
 * time and the device's primary context retained; EA_ERR_NO_DEVICE says why there is
 * none.
 */
EA_API ea_status ea_context_create(const ea_context_options *options, ea_context **context);

/* Gives a context up (NULL is fine): it is not to be used again. Its plans may go before or after: they
 * keep the device open and work on, and with the last of them it is freed. */
EA_API void ea_context_destroy(ea_context *context);

typedef struct ea_device_info {
  size_t struct_size;
  ea_device_type device;
  int32_t device_ordinal;
  char name[128];           /* the processor's or the card's own name */
  char arch[16];            /* "sm_90", or the name of the chosen ea_isa */
  ea_isa isa;               /* CPU: the chosen one */
  int32_t num_threads;      /* CPU: threads a run uses */
  int32_t multiprocessors;  /* CUDA */
  int64_t smem_limit_bytes; /* CUDA: shared memory that one block may opt into */
  int64_t memory_bytes;     /* CUDA: the card's memory */
  int32_t driver_version;   /* CUDA: as the driver gives it, 13000 for 13.0 */
} ea_device_info;

#define EA_DEVICE_INFO_INIT                                                                                            \
  { sizeof(ea_device_info), EA_DEVICE_CPU, 0, "", "", EA_ISA_AUTO, 0, 0, 0, 0, 0 }

EA_API ea_status ea_context_info(const ea_context *context, ea_device_info *info);

/* How many CUDA devices the driver shows; 0 when there is no driver, and then
 * ea_last_error() says why. */
EA_API int32_t ea_cuda_device_count(void);

/* ------------------------------------------------------------------------------------
 * Problem: the kind of call
 * ---------------------------------------------------------------------------------- */

/*
 * What does not change from batch to batch.
 *
 * Let query i (0 <= i < E) of a sequence sit at position P+i, and let key j
 * (0 <= j < P+E) be prefix token j for j < P and new token j-P otherwise. Then
 *
 *     s(i,j) = softmax_scale * q_i . k_j            (times k_scale when j < P)
 *     s = logit_cap * tanh(s / logit_cap)           if logit_cap > 0
 *     s = s * t(P+i)                                if xai_temperature_len = L > 0, where
 *                                                   t(x) = log2(x)/log2(L) for x > L, else 1
 *     out_i = sum_j exp(s(i,j)) v_j / (sum_j exp(s(i,j)) [+ exp(sink_h)])   over visible j
 *             (v_j times v_scale when j < P)
 *     lse_i = log of that denominator
 *
 * Key j is visible to query i when all of these hold:
 *   causal:               j < P, or j-P <= i;
 *   window_left = W > 0:  P+i <= j+W; and where causal is off also j <= P+i+W for new tokens;
 *   custom mask:          replaces the causal rule, see ea_batch.custom_mask;
 *   skip_prefix drops the prefix, skip_extend the new tokens: the two partial results,
 *   put together by ea_merge, are the whole.
 * A query that sees no key gets out = 0 and lse = -inf, with or without a sink.
 *
 * Range: scores are computed in f32 (in float64 by EA_FAMILY_REFERENCE), so q_i . k_j with its partial sums, and s,
 * must stay within f32's range; within it they may be of any size and sign. Sums of weighted values are kept in f32
 * too, whose weights may be up to 2^10: values up to 2^90 are safe for any number of keys.
 */
typedef struct ea_problem {
  size_t struct_size;
  ea_dtype dtype;               /* q, k, v, out: EA_BF16 (default), EA_F16, EA_F32 */
  ea_dtype cache_dtype;         /* k_cache, v_cache: as q (EA_DTYPE_NONE, default), EA_E4M3, EA_E5M2 */
  ea_dtype index_dtype;         /* kv_indices: EA_I32 (default), EA_I64 */
  ea_dtype mask_indptr_dtype;   /* mask_indptr: EA_I64 (default), EA_I32 */
  ea_dtype sinks_dtype;         /* sinks: EA_F32 (default), or as q (EA_DTYPE_NONE) */
  int32_t num_q_heads;          /* Hq >= 1, a multiple of Hkv */
  int32_t num_kv_heads;         /* Hkv >= 1 */
  int32_t head_dim;             /* D, 1 to EA_MAX_HEAD_DIM */
  int32_t head_dim_v;           /* Dv, 1 to EA_MAX_HEAD_DIM; 0 (default): as head_dim */
  int32_t page_size;            /* slots a page, >= 1; 1 (default): the pool is [S, Hkv, D] */
  bool shared_kv;               /* v is the first Dv columns of k, v_cache those of k_cache (latent
                                   attention): v and v_cache of a batch are then not looked at */
  bool causal;                  /* true */
  bool has_sinks;               /* ea_batch.sinks will be given; false */
  bool has_custom_mask;         /* ea_batch.custom_mask will be given; false */
  bool skip_prefix_custom_mask; /* the prefix is visible whatever the custom mask says; true */
  bool skip_prefix;             /* false */
  bool skip_extend;             /* false */
  int32_t window_left;          /* W >= 1; 0 or -1 (default): no window */
  int64_t xai_temperature_len;  /* L >= 2; 0 (default) or -1: none */
  double softmax_scale;         /* > 0 and finite, as a normal f32 too, like the next three; 0 (default): 1/sqrt(D) */
  double logit_cap;             /* > 0 and finite; 0 (default): none */
  double k_scale;               /* of the prefix; > 0 and finite; 1 */
  double v_scale;               /* of the prefix; > 0 and finite; 1 */
} ea_problem;

#define EA_MAX_HEAD_DIM 576

#define EA_PROBLEM_INIT                                                                                                \
  {                                                                                                                    \
    sizeof(ea_problem), EA_BF16, EA_DTYPE_NONE, EA_I32, EA_I64, EA_F32, 0, 0, 0, 0, 1, false, true, false, false,      \
        true, false, false, -1, 0, 0.0, 0.0, 1.0, 1.0                                                                  \
  }

/* ------------------------------------------------------------------------------------
 * Plan: what will run, and why
 * ---------------------------------------------------------------------------------- */

typedef enum ea_family {
  EA_FAMILY_AUTO = 0,
  EA_FAMILY_REFERENCE = 1, /* CPU, float64, nothing but the definition; slow */
  EA_FAMILY_CPU = 2,       /* CPU, vectorised */
  EA_FAMILY_PORTABLE = 3,  /* CUDA, sm_80 and later, every shape and feature */
  EA_FAMILY_HOPPER = 4     /* CUDA, sm_90a: TMA, wgmma, warpgroup specialisation */
} ea_family;

/* "portable" and so on; "unknown" otherwise. Never NULL. */
EA_API const char *ea_family_name(ea_family family);

typedef struct ea_plan_options {
  size_t struct_size;
  ea_family family; /* EA_FAMILY_AUTO */
  int32_t stages;   /* pipeline depth, CUDA only; 0: automatic. One that does not fit is
                       EA_ERR_DOES_NOT_FIT, never silently changed */
} ea_plan_options;

#define EA_PLAN_OPTIONS_INIT                                                                                           \
  { sizeof(ea_plan_options), EA_FAMILY_AUTO, 0 }

typedef struct ea_plan_info {
  size_t struct_size;
  ea_family family;
  char kernel[64];          /* the kernel's name, e.g. "portable_d128_bf16" */
  int32_t tile_m;           /* query rows (tokens times heads of one group) a block */
  int32_t tile_n;           /* keys a tile */
  int32_t stages;           /* pipeline depth: key/value tiles in flight; 1 on a CPU */
  int32_t max_stages;       /* the deepest that fits */
  int32_t threads;          /* a block; on a CPU, the threads of a run */
  int64_t smem_bytes;       /* dynamic shared memory a block needs at this depth; 0 on a CPU */
  int64_t smem_limit_bytes; /* and may have; 0 on a CPU */
  int32_t registers;        /* a thread, as compiled; 0 if not known without the device */
  char reason[256];         /* one sentence: why this family, these tiles and this depth */
} ea_plan_info;

#define EA_PLAN_INFO_INIT                                                                                              \
  { sizeof(ea_plan_info), EA_FAMILY_AUTO, "", 0, 0, 0, 0, 0, 0, 0, 0, "" }

typedef struct ea_plan ea_plan;

/*
 * Decides what runs for a problem on a context's device. options may be NULL.
 * EA_ERR_INVALID for a problem that breaks a rule above, EA_ERR_UNSUPPORTED where the
 * device or the asked family cannot do it, EA_ERR_DOES_NOT_FIT as ea_plan_options says.
 */
EA_API ea_status ea_plan_create(ea_context *context, const ea_problem *problem, const ea_plan_options *options,
                                ea_plan **plan);

/* Frees a plan (NULL is fine). Work enqueued with it on a GPU may still be running. */
EA_API void ea_plan_destroy(ea_plan *plan);

/* Fills as much of info as info->struct_size covers. */
EA_API ea_status ea_plan_get_info(const ea_plan *plan, ea_plan_info *info);

/*
 * The same decision for an architecture that need not be here: "sm_80", "sm_86",
 * "sm_89", "sm_90", "sm_100", "sm_120". EA_ERR_INVALID names the known ones.
 */
EA_API ea_status ea_plan_for_arch(const char *arch, const ea_problem *problem, const ea_plan_options *options,
                                  ea_plan_info *info);

/* ------------------------------------------------------------------------------------
 * Batch: one call
 * ---------------------------------------------------------------------------------- */

/*
 * A tensor [T, H, dim]; its last dimension is contiguous. Strides are in elements and
 * not negative; 0 means packed (head_stride = dim, token_stride = H * head_stride).
 */
typedef struct ea_tensor {
  void *data; /* inputs are never written */
  int64_t token_stride;
  int64_t head_stride;
} ea_tensor;

/*
 * A pool [pages, page_size, Hkv, dim]; slot s is row s % page_size of page s / page_size.
 * Strides in elements as above; 0 means packed (head_stride = dim, row_stride = Hkv *
 * head_stride, page_stride = page_size * row_stride).
 */
typedef struct ea_cache {
  const void *data;
  int64_t page_stride;
  int64_t row_stride;
  int64_t head_stride;
} ea_cache;

/*
 * The tensors of one call. Every pointer is host memory on a CPU context and device
 * memory on a CUDA context, except the two that are called host.
 *
 * out, lse and the workspace have memory of their own: EA_ERR_INVALID where one can share a
 * byte with another or with an input. Views that interleave in one buffer are fine where a
 * stride of either shows that they keep apart: modulo that stride (in bytes) each covers one
 * range, and the ranges do not meet, as with different heads, or columns, of rows of one length.
 */
typedef struct ea_batch {
  size_t struct_size;
  int64_t num_seqs;           /* B >= 0 */
  int64_t num_tokens;         /* T >= 0 */
  int64_t num_kv_indices;     /* elements of kv_indices, >= kv_indptr[B] */
  int64_t num_pages;          /* S / page_size */
  ea_tensor q;                /* [T, Hq, D], type dtype */
  ea_tensor k;                /* [T, Hkv, D] */
  ea_tensor v;                /* [T, Hkv, Dv] */
  ea_cache k_cache;           /* [pages, page_size, Hkv, D], type cache_dtype; may be NULL when no
                                 sequence has a prefix */
  ea_cache v_cache;           /* [pages, page_size, Hkv, Dv] */
  ea_tensor out;              /* [T, Hq, Dv], type dtype; every row is written; like lse, memory of its own */
  float *lse;                 /* [T, Hq] f32, or NULL: not wanted */
  int64_t lse_token_stride;   /* in elements; 0: Hq */
  int64_t lse_head_stride;    /* in elements; 0: 1 */
  const int32_t *qo_indptr;   /* [B+1]: sequence b's new tokens are rows qo_indptr[b] ..
                                 qo_indptr[b+1]-1; first 0, last T, never decreasing */
  const int32_t *kv_indptr;   /* [B+1]: the same for the prefix, into kv_indices */
  const void *kv_indices;     /* [num_kv_indices]: the slot of each prefix token, in order */
  const uint8_t *custom_mask; /* flat bytes, non-zero is visible. Sequence b's mask starts at
                                 mask_indptr[b] and is E rows of window_kv_offsets[b]+P+E bytes (the first
                                 window_kv_offsets[b] of a row unused), or of P+E where
                                 window_kv_offsets is NULL or there is no window */
  int64_t custom_mask_bytes;
  const void *mask_indptr;          /* [B], type mask_indptr_dtype (an entry more is not looked at) */
  const int32_t *window_kv_offsets; /* [B], or NULL */
  const void *sinks;                /* [Hq], one raw logit a query head: adds exp(sink) to the
                                       denominator, and so to lse, and to nothing else */
  const int32_t *qo_indptr_host;    /* CUDA: the same arrays in host memory, or NULL; with both, the call */
  const int32_t *kv_indptr_host;    /* is checked on the host before it is enqueued */
} ea_batch;

/* Every other field is zero or NULL. Spelled out, so that no compiler warns of missing ones. */
#define EA_BATCH_INIT                                                                                                  \
  {                                                                                                                    \
    sizeof(ea_batch), 0, 0, 0, 0, {NULL, 0, 0}, {NULL, 0, 0}, {NULL, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0},          \
        {NULL, 0, 0}, NULL, 0, 0, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL                              \
  }

/*
 * Bytes of workspace with which ea_run is fastest for a batch of this num_seqs, num_tokens
 * and num_kv_indices (nothing else of it is looked at). What it cannot do without is what
 * this says for num_kv_indices = 0: that grows with the other two, so taken for the largest
 * batch it serves all, and may be 0, on a GPU too. The rest, never more than 1 GiB, is for
 * cached keys and values that many new tokens read from scattered slots: some kernels copy
 * them together first. Without room for that they are read slot by slot, for the same result.
 */
EA_API ea_status ea_workspace_size(const ea_plan *plan, const ea_batch *batch, size_t *bytes);

/*
 * Computes out and lse. workspace: ea_workspace_size bytes (which says when fewer will do),
 * 256-byte aligned, of the context's memory, not shared between runs that overlap. On a CPU it
 * may be NULL with 0 bytes: the call then allocates it and frees it before it returns, or is
 * EA_ERR_OUT_OF_MEMORY with nothing written.
 *
 * CPU: everything is checked (index arrays and slots too) before anything is written;
 * returns when done; stream must be NULL. CUDA: shapes, pointers and strides are
 * checked, the work is enqueued on stream (a CUstream or cudaStream_t; NULL is the
 * default stream) and the call returns: no allocation, no synchronisation, so it can be
 * captured in a graph.
 *
 * Results are bit for bit the same for every pipeline depth, from run to run, whatever
 * else is in the batch, whatever the slots and the page size are, for any number of
 * threads, and wherever the same tokens are cut into prefix and new tokens (as long as
 * both have one type and the scales are 1).
 */
EA_API ea_status ea_run(const ea_plan *plan, const ea_batch *batch, void *workspace, size_t workspace_bytes,
                        void *stream);

/*
 * Checks what ea_run leaves unchecked on a GPU: the index arrays' order and ends, every
 * slot, the masks' extent. Enqueues one small kernel and waits for it. On a CPU context
 * the same check as ea_run's. EA_ERR_INVALID names the first bad entry. workspace: as for
 * ea_run; on a GPU of fewer than 256 bytes it allocates what it needs for the time.
 */
EA_API ea_status ea_validate(const ea_plan *plan, const ea_batch *batch, void *workspace, size_t workspace_bytes,
                             void *stream);

/* ------------------------------------------------------------------------------------
 * Merge: two partial results into one
 * ---------------------------------------------------------------------------------- */

/*
 * For the same queries over two disjoint sets of keys:
 *
 *     lse = log(exp(lse_a) + exp(lse_b)),  out = exp(lse_a-lse) out_a + exp(lse_b-lse) out_b
 *
 * A part with lse = -inf counts for nothing, whatever its out holds; two such parts
 * give out = 0 and lse = -inf. All lse are [T, H] f32 packed. out may be out_a or out_b,
 * data and strides, and lse may be lse_a or lse_b; other than that they have memory of their
 * own, as ea_batch says.
 */
typedef struct ea_merge_args {
  size_t struct_size;
  ea_dtype dtype; /* out_a, out_b, out: EA_BF16, EA_F16, EA_F32 */
  int64_t num_tokens;
  int32_t num_heads;
  int32_t head_dim_v;
  ea_tensor out_a, out_b, out; /* [T, H, Dv] */
  const float *lse_a, *lse_b;  /* [T, H] */
  float *lse;                  /* [T, H], or NULL */
} ea_merge_args;

#define EA_MERGE_ARGS_INIT                                                                                             \
  { sizeof(ea_merge_args), EA_DTYPE_NONE, 0, 0, 0, {NULL, 0, 0}, {NULL, 0, 0}, {NULL, 0, 0}, NULL, NULL, NULL }

/* Host pointers on a CPU context, device pointers on a CUDA context (enqueued on stream). */
EA_API ea_status ea_merge(ea_context *context, const ea_merge_args *args, void *stream);

/* ------------------------------------------------------------------------------------
 * Capture: calls as case files
 * ---------------------------------------------------------------------------------- */

/*
 * Which calls of ea_run are written into a folder as case files, for `extattn run` to replay on
 * any machine. A call is written when any of the conditions holds. The file holds the call's
 * tensors, personal data in them included; of the pool only the pages that the call names.
 */
typedef struct ea_capture_options {
  size_t struct_size;
  const char *directory; /* an existing folder; copied */
  int64_t call;          /* the n-th call on the context from here on, counted from 1; 0 (default): none */
  double slower_ms;      /* calls that take longer; 0 (default): none. On a GPU every call is then waited for */
  bool failing;          /* calls that are not EA_OK; false */
  int32_t max_files;     /* stop after so many, >= 1; 16 */
} ea_capture_options;

#define EA_CAPTURE_OPTIONS_INIT                                                                                        \
  { sizeof(ea_capture_options), NULL, 0, 0.0, false, 16 }

/*
 * Begins to capture, or ends it (options NULL). A new context begins by itself where the environment
 * says so: EXTATTN_CAPTURE names the folder, EXTATTN_CAPTURE_WHEN the conditions, separated by commas:
 * "call=3", "slower=2.5", "failing", "limit=100" (default: "failing").
 *
 * Writing a file copies from the device and waits; a call inside a CUDA graph's capture is never
 * written. The call's own status and ea_last_error stay as they were; what was written, or why it
 * was not, is said in one line on standard error. A failing call is written as far as its arrays can
 * be read: a NULL pointer or a negative count cannot. Files: extattn-PID-NUMBER-WHY.safetensors.
 */
EA_API ea_status ea_context_capture(ea_context *context, const ea_capture_options *options);

#ifdef __cplusplus
}
#endif

#endif
