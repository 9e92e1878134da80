/* Traces of requests, and the batches that a server with chunked prefill and a prefix cache
 * would make of them. For the command and the tests; not part of the library.
 *
 * A trace is JSON lines, one request a line, as the Mooncake project publishes them:
 *
 *     {"input_length": 6758, "hash_ids": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]}
 *
 * A hash id stands for a block of EA_TRACE_BLOCK_TOKENS tokens with all that precedes it.
 * Other members are ignored. */
#ifndef EA_IO_TRACE_H
#define EA_IO_TRACE_H

#include <stdint.h>

#include "extattn.h"

#define EA_TRACE_BLOCK_TOKENS 512

/* A line longer than this is not a request. */
#define EA_TRACE_MAX_LINE_BYTES (16 << 20)

typedef struct ea_trace_request {
  int32_t input_length; /* tokens, 1 to EA_MAX_SEQ_LEN */
  int64_t first_hash;   /* its hash_ids: the trace's, from here on */
  int64_t num_hashes;
} ea_trace_request;

typedef struct ea_trace {
  ea_trace_request *requests;
  int64_t num_requests;
  int64_t *hash_ids;
  int64_t num_hashes;
} ea_trace;

/*
 * Reads the first max_requests requests of a file ("-": standard input); later lines are not
 * looked at. Empty lines are skipped. EA_ERR_INVALID names the file, the line and what is
 * wrong with it; the trace is then empty.
 */
ea_status ea_trace_read(const char *path, int64_t max_requests, ea_trace *trace);

/* Frees what a trace holds and leaves it empty. */
void ea_trace_free(ea_trace *trace);

/*
 * The rules, so that counts can be compared: requests in file order; the cache of blocks is
 * unlimited; a request's prefix is EA_TRACE_BLOCK_TOKENS times the number of its leading
 * hash_ids already cached, at most input_length - 1; its hash_ids are cached as it is
 * admitted; a batch holds at most budget new tokens, filled first come first served, a request
 * split where the batch is full, at most one piece of it a batch.
 */
typedef struct ea_trace_piece {
  int64_t request;
  int32_t prefix;        /* P: cached blocks, and the request's earlier pieces */
  int32_t extend;        /* E >= 1 */
  int64_t private_block; /* number of the first block beyond the request's hash_ids */
} ea_trace_piece;

typedef struct ea_trace_batch {
  const ea_trace_piece *pieces; /* the schedule's, valid until its next batch */
  int64_t num_pieces;
  int64_t new_tokens;    /* sum of extend */
  int64_t prefix_tokens; /* sum of prefix */
  int64_t visible_pairs; /* causal: sum of extend * prefix + extend * (extend + 1) / 2 */
} ea_trace_batch;

typedef struct ea_schedule ea_schedule;

/* Starts at the first request. The trace must stay as it is. */
ea_status ea_schedule_create(const ea_trace *trace, int64_t budget, ea_schedule **schedule);
void ea_schedule_destroy(ea_schedule *schedule);

/* The next batch; one without pieces after the last. */
ea_status ea_schedule_next(ea_schedule *schedule, ea_trace_batch *batch);

/*
 * The blocks that hold a piece's prefix: block i holds its tokens i * EA_TRACE_BLOCK_TOKENS
 * and up. Writes (prefix + EA_TRACE_BLOCK_TOKENS - 1) / EA_TRACE_BLOCK_TOKENS numbers. Blocks
 * are numbered from 0 in the order in which they are cached; tokens that no hash_id names get
 * blocks of their own, used by this request only.
 */
void ea_schedule_blocks(const ea_schedule *schedule, const ea_trace_piece *piece, int64_t *blocks);

typedef struct ea_trace_totals {
  int64_t batches;
  int64_t sequences; /* pieces */
  int64_t new_tokens;
  int64_t prefix_tokens;
  int64_t visible_pairs;
  int64_t blocks; /* cached at the end */
  /* of one batch: */
  int64_t max_sequences;
  int64_t max_new_tokens;
  int64_t max_prefix_tokens;
  int64_t max_visible_pairs;
} ea_trace_totals;

/* Walks the whole schedule of a trace. */
ea_status ea_trace_count(const ea_trace *trace, int64_t budget, ea_trace_totals *totals);

#endif
