/* What `extattn bench` measures and how. bench_suites.c has the shapes, bench_device.c the
 * buffers, the timing and the ceilings, bench.c the command, bench_replay.c its suite replay. */
#ifndef EA_CLI_BENCH_H
#define EA_CLI_BENCH_H

#include "cli.h"

/* ------------------------------------------------------------------------------------
 * The command
 * ---------------------------------------------------------------------------------- */

typedef struct ea_bench_method {
  int warm_up, repeats;
} ea_bench_method;

#define EA_BENCH_MAX_REPEATS 1000
/* A GPU's rest before what is measured: near its power limit it slows down within tenths of a second, and a row would
 * depend on the rows before it (docs/notes/2026-12-01-short-calls.md has numbers). */
#define EA_BENCH_PAUSE_MS 250

/* What is asked for. */
typedef struct ea_bench_args {
  ea_device_args device;
  const char *suite_name;
  ea_bench_method method;
  int32_t shrink; /* the divisor of ea_bench_shrunk */
  bool list;
  bool json;
  const char *commit, *cublas_path, *out_path, *plot_path, *trace_path;
  int64_t max_requests; /* 0: as many as without the option */
} ea_bench_args;

typedef struct ea_bench_ceilings ea_bench_ceilings;

/* The depths to measure, 0 for automatic; returns their number. */
#define EA_BENCH_MAX_DEPTHS 4
int ea_bench_depths(const ea_bench_args *args, const ea_device_info *device, int32_t depths[EA_BENCH_MAX_DEPTHS]);

/* A depth that does not fit, or a shape that the device cannot run, is a row like any other. */
bool ea_bench_is_an_answer(ea_status status);

/* Nothing for a CPU, nor where shapes are shrunk. */
ea_status ea_bench_measure_ceilings(ea_context *context, const ea_bench_args *args, const ea_device_info *device,
                                    ea_bench_ceilings *ceilings);

/* Whether text goes to standard output, and its first line: the device and its ceilings. */
bool ea_bench_wants_table(const ea_bench_args *args);
void ea_bench_print_device(const ea_device_info *device, const ea_bench_ceilings *ceilings);

/* What every result begins with. */
json_t *ea_bench_head_json(const ea_bench_args *args, const ea_device_info *device, const ea_bench_ceilings *ceilings);

/* Writes what was asked for, the numbers first: a plot can be made of them later. Nothing is drawn, and the code is
 * that of a device that cannot, where no row was measured. Drops json. The exit code: `code`, unless that is
 * EA_EXIT_OK. */
int ea_bench_deliver(const ea_bench_args *args, json_t *json, bool some_ran, int code);

/* The suite replay: a trace, pass after pass, at every depth. An exit code. */
int ea_bench_replay(ea_context *context, const ea_bench_args *args);

/* ------------------------------------------------------------------------------------
 * Shapes
 * ---------------------------------------------------------------------------------- */

typedef enum ea_bench_trait {
  EA_BENCH_SHARED_KV = 1,    /* v is the first head_dim_v columns of k */
  EA_BENCH_RAGGED = 2,       /* 1 to extend new tokens, as ea_bench_extend says */
  EA_BENCH_ORDERED_SLOTS = 4 /* the prefix lies in consecutive slots; without it in shuffled ones */
} ea_bench_trait;

/* One batch: seqs sequences of prefix cached and extend new tokens each, causal. */
typedef struct ea_bench_case {
  ea_dtype dtype;
  int32_t head_dim, head_dim_v;
  int32_t num_q_heads, num_kv_heads;
  int32_t window; /* 0: none */
  int32_t seqs, prefix, extend;
  unsigned traits; /* of ea_bench_trait */
} ea_bench_case;

typedef struct ea_bench_suite {
  const char *name;
  const char *what; /* one line */
  const ea_bench_case *cases;
  int num_cases;
  bool memory_bound; /* judged by bytes a second, not by products */
  bool on_cpu;
} ea_bench_suite;

extern const ea_bench_suite ea_bench_suites[];
extern const int ea_num_bench_suites;

/* The same with the divisor-th part of its tokens and of its window, at least 1 of what is there. */
ea_bench_case ea_bench_shrunk(const ea_bench_case *c, int32_t divisor);

ea_problem ea_bench_problem(const ea_bench_case *c);
/* New tokens of a sequence. In a ragged batch the lengths lie evenly between 1 and c->extend, both
 * among them, and sequence s has the (37 s mod seqs)-th of them, so long and short ones mix. */
int32_t ea_bench_extend(const ea_bench_case *c, int32_t seq);
/* Of all sequences. */
int64_t ea_bench_new_tokens(const ea_bench_case *c);
/* Multiply and add of both products, over the visible pairs. */
double ea_bench_flop(const ea_bench_case *c);
/* Every key, value, query and output once. */
double ea_bench_bytes(const ea_bench_case *c);
/* "8 x (8192 + 512)", "64 x (0 + 1 to 2048)", in a buffer of n bytes. */
void ea_bench_batch_text(const ea_bench_case *c, char *text, size_t n);

/* ------------------------------------------------------------------------------------
 * Timing
 * ---------------------------------------------------------------------------------- */

/* A piece of work, the i-th time: enqueued on the default stream of a GPU, done on return on a CPU. */
typedef ea_status (*ea_bench_work)(void *user, int i);

typedef struct ea_bench_time {
  double median_ms, min_ms, max_ms;
} ea_bench_time;

/* Median and ends of n durations, which it sorts. */
ea_bench_time ea_bench_summarise(double *ms, int n);

/* By CUDA events around each repeat on a GPU, by the host's clock on a CPU. */
ea_status ea_bench_measure(ea_context *context, ea_bench_method method, ea_bench_work work, void *user,
                           ea_bench_time *time);

/* ------------------------------------------------------------------------------------
 * Buffers
 * ---------------------------------------------------------------------------------- */

/* A batch of normal random numbers, in as many copies as it takes for a repeat not to find
 * the last one's in the caches. */
typedef struct ea_bench_buffers ea_bench_buffers;

ea_status ea_bench_buffers_create(ea_context *context, const ea_bench_case *c, ea_bench_buffers **buffers);
/* NULL is fine. */
void ea_bench_buffers_destroy(ea_bench_buffers *buffers);
/* The i-th copy's, i taken modulo their number. */
const ea_batch *ea_bench_batch(const ea_bench_buffers *buffers, int i);
/* Runs once into poisoned outputs and hashes every byte of out and lse. */
ea_status ea_bench_fingerprint(ea_bench_buffers *buffers, const ea_plan *plan, void *workspace, size_t workspace_bytes,
                               uint64_t *fingerprint);

/* ------------------------------------------------------------------------------------
 * Ceilings of a GPU
 * ---------------------------------------------------------------------------------- */

struct ea_bench_ceilings {
  double product_tflops;  /* 8192 x 8192 x 8192 in bf16 through cuBLAS; 0: no cuBLAS */
  double copy_gbytes;     /* a second, read and written, of a copy on the device */
  char product_note[128]; /* why there is no product */
};

#define EA_BENCH_PRODUCT_DIM 8192

/* cublas: the library's file, or NULL: the usual names. */
ea_status ea_bench_ceilings_measure(ea_context *context, ea_bench_method method, const char *cublas,
                                    ea_bench_ceilings *ceilings);

#endif
