/* What `extattn replay` runs: the batches of a trace, one after another, on one device.
 *
 * Queries, keys and values are random numbers that stay as they are: attention takes the
 * same time whatever they hold. The cache is a pool of slots, filled once. A block of the
 * trace has a place in it, the same for every request that shares the block; where the pool
 * is smaller than what the (unlimited) cache of the trace's rules would hold, blocks share
 * places in turn, so that every prefix keeps its length and its scatter. */
#ifndef EA_CLI_REPLAY_ENGINE_H
#define EA_CLI_REPLAY_ENGINE_H

#include "cli.h"
#include "io/trace.h"

typedef enum ea_placement {
  EA_PLACE_ORDERED,  /* block after block, token after token */
  EA_PLACE_SHUFFLED, /* every token anywhere */
  EA_PLACE_PAGES     /* pages of page_size tokens, each anywhere */
} ea_placement;

typedef struct ea_replay_config {
  const ea_trace *trace;
  const ea_trace_totals *totals; /* of the trace with this budget */
  int64_t budget;
  ea_context *context;
  ea_problem problem;
  ea_plan_options plan_options;
  ea_placement placement;
  int32_t page_size;   /* EA_PLACE_PAGES */
  int64_t pool_tokens; /* 0: all that the trace caches, as far as a part of the free memory holds it */
  uint64_t seed;
} ea_replay_config;

typedef struct ea_replay ea_replay;

/* Plans, allocates and fills, and runs the first batch once to warm up. */
ea_status ea_replay_open(const ea_replay_config *config, ea_replay **replay);

/* Runs the next batch; one without pieces (valid until the next call) after the last. */
ea_status ea_replay_next(ea_replay *replay, ea_trace_batch *batch, double *elapsed_ms);

/* Back to the first batch. */
ea_status ea_replay_restart(ea_replay *replay);

/* Another pipeline depth (0: automatic) for the batches to come, the pool left as it is. After a failure the
 * old one stays. */
ea_status ea_replay_set_stages(ea_replay *replay, int32_t stages);

const ea_plan_info *ea_replay_plan(const ea_replay *replay);
/* Slots of the pool. */
int64_t ea_replay_pool_tokens(const ea_replay *replay);
/* Bytes of the pool. */
int64_t ea_replay_pool_bytes(const ea_replay *replay);

/* NULL is fine. */
void ea_replay_close(ea_replay *replay);

#endif
