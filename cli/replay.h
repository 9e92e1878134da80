/* The result of `extattn replay`, and its two forms: text and JSON. */
#ifndef EA_CLI_REPLAY_H
#define EA_CLI_REPLAY_H

#include "cli.h"
#include "replay_engine.h"

/* One batch that was run. */
typedef struct ea_replay_record {
  int64_t sequences, new_tokens, prefix_tokens, visible_pairs;
  double elapsed_ms;
} ea_replay_record;

/* What was asked, what the trace holds and, after a run, what was measured. */
typedef struct ea_replay_result {
  const char *trace_path;
  int64_t num_requests;
  int64_t prompt_tokens; /* sum of input_length: new, or found in the cache */
  ea_replay_config config;
  ea_trace_totals totals;
  ea_device_info device;
  ea_plan_info plan;
  int64_t pool_tokens, pool_bytes;
  ea_replay_record *records; /* [totals.batches] */
  int64_t num_records;
  double elapsed_ms; /* of all records */
} ea_replay_result;

/* Two products for each visible pair and query head, a multiplication and an addition each:
 * 2 (D + Dv) Hq pairs. In 10^12 a second. */
double ea_replay_tflops(const ea_problem *problem, int64_t visible_pairs, double elapsed_ms);

/* The counts, without anything that was measured. */
void ea_replay_print_counts(const ea_replay_result *result);
/* What is about to run. */
void ea_replay_print_setup(const ea_replay_result *result);
/* The table of batches: its header, the row of the latest record, and what follows the last. */
void ea_replay_print_header(const ea_replay_result *result);
void ea_replay_print_record(const ea_replay_result *result);
void ea_replay_print_summary(const ea_replay_result *result);

/* Counts only when nothing has been run. A new reference; NULL when out of memory. */
json_t *ea_replay_json(const ea_replay_result *result);

#endif
