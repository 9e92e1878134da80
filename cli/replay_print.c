/* The result of a replay as text. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"

double ea_replay_tflops(const ea_problem *problem, int64_t visible_pairs, double elapsed_ms) {
  const int32_t dim_v = problem->head_dim_v ? problem->head_dim_v : problem->head_dim;
  const double flop = 2.0 * (problem->head_dim + dim_v) * problem->num_q_heads * (double)visible_pairs;
  return elapsed_ms > 0 ? flop / elapsed_ms * 1e-9 : 0;
}

static double per_second(int64_t count, double elapsed_ms) {
  return elapsed_ms > 0 ? (double)count / elapsed_ms * 1e3 : 0;
}

/* Three digits or more. */
static ea_text tflops_text(const ea_replay_result *r, int64_t visible_pairs, double elapsed_ms) {
  const double tflops = ea_replay_tflops(&r->config.problem, visible_pairs, elapsed_ms);
  ea_text out;
  snprintf(out.text, sizeof out.text, "%.*f", tflops < 10 ? 3 : 1, tflops);
  return out;
}

static ea_text ms_text(double ms) {
  ea_text out;
  snprintf(out.text, sizeof out.text, "%.*f", ms < 100 ? 3 : 1, ms);
  return out;
}

/* ------------------------------------------------------------------------------------
 * Before the run
 * ---------------------------------------------------------------------------------- */

static double cached_percent(const ea_replay_result *r) {
  return 100.0 * (1.0 - (double)r->totals.new_tokens / (double)r->prompt_tokens);
}

void ea_replay_print_counts(const ea_replay_result *r) {
  const ea_trace_totals *t = &r->totals;
  const struct {
    const char *name;
    int64_t value;
  } lines[] = {
      {"requests", r->num_requests},       {"prompt tokens", r->prompt_tokens}, {"batches", t->batches},
      {"sequences", t->sequences},         {"new tokens", t->new_tokens},       {"prefix tokens", t->prefix_tokens},
      {"visible pairs", t->visible_pairs},
  };
  const int width = (int)strlen(ea_count_text(t->visible_pairs).text);
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
    printf("%-14s %*s\n", lines[i].name, width, ea_count_text(lines[i].value).text);
  }
}

static void print_shape(const ea_problem *p) {
  printf("shape   %d/%d heads, head dim %d", p->num_q_heads, p->num_kv_heads, p->head_dim);
  if (p->head_dim_v && p->head_dim_v != p->head_dim) printf("/%d", p->head_dim_v);
  printf(", %s", ea_dtype_name(p->dtype));
  if (p->cache_dtype != EA_DTYPE_NONE && p->cache_dtype != p->dtype)
    printf(", cache %s", ea_dtype_name(p->cache_dtype));
  puts(p->shared_kv ? ", values in the keys" : "");
}

static void print_pool(const ea_replay_result *r) {
  printf("pool    %s tokens, %.2f GiB, ", ea_count_text(r->pool_tokens).text, (double)r->pool_bytes / (1 << 30));
  switch (r->config.placement) {
  case EA_PLACE_ORDERED:
    puts("slots in order");
    break;
  case EA_PLACE_SHUFFLED:
    puts("slots shuffled");
    break;
  case EA_PLACE_PAGES:
    printf("pages of %d shuffled\n", r->config.page_size);
    break;
  }
  const int64_t cached = r->totals.blocks * EA_TRACE_BLOCK_TOKENS;
  if (r->pool_tokens < cached) {
    printf("        blocks share slots: the trace caches %s tokens\n", ea_count_text(cached).text);
  }
}

void ea_replay_print_setup(const ea_replay_result *r) {
  printf("trace   %s: %s requests, %s prompt tokens, %.0f %% of them cached\n", r->trace_path,
         ea_count_text(r->num_requests).text, ea_count_text(r->prompt_tokens).text, cached_percent(r));
  printf("device  %s, %s", r->device.name, r->device.arch);
  if (r->device.device == EA_DEVICE_CPU)
    printf(", %d thread%s", r->device.num_threads, r->device.num_threads > 1 ? "s" : "");
  putchar('\n');
  print_shape(&r->config.problem);
  printf("kernel  %s (%s), %d rows x %d keys", r->plan.kernel, ea_family_name(r->plan.family), r->plan.tile_m,
         r->plan.tile_n);
  if (r->device.device == EA_DEVICE_CUDA) printf(", %d of %d stages", r->plan.stages, r->plan.max_stages);
  putchar('\n');
  print_pool(r);
}

/* ------------------------------------------------------------------------------------
 * The batches
 * ---------------------------------------------------------------------------------- */

enum { NUM_COLUMNS = 8 };

static void make_columns(const ea_replay_result *r, ea_column columns[NUM_COLUMNS]) {
  const ea_trace_totals *t = &r->totals;
  const int64_t widest[] = {t->batches, t->sequences, t->new_tokens, t->prefix_tokens, t->visible_pairs};
  static const char *const headers[NUM_COLUMNS] = {"batch",         "seqs",    "new tokens",   "prefix",
                                                   "visible pairs", "time ms", "new tokens/s", "TFLOP/s"};
  for (int i = 0; i < NUM_COLUMNS; i++) {
    columns[i] = (ea_column){.header = headers[i]};
    if (i < 5) columns[i].width = (int)strlen(ea_count_text(widest[i]).text);
  }
  columns[5].width = 7;
}

static void print_row(const ea_replay_result *r, const char *name, const ea_replay_record *row) {
  ea_column columns[NUM_COLUMNS];
  make_columns(r, columns);
  ea_row_print(stdout, columns, NUM_COLUMNS, name, ea_count_text(row->sequences).text,
               ea_count_text(row->new_tokens).text, ea_count_text(row->prefix_tokens).text,
               ea_count_text(row->visible_pairs).text, ms_text(row->elapsed_ms).text,
               ea_count_text((int64_t)per_second(row->new_tokens, row->elapsed_ms)).text,
               tflops_text(r, row->visible_pairs, row->elapsed_ms).text);
}

void ea_replay_print_header(const ea_replay_result *r) {
  ea_column columns[NUM_COLUMNS];
  make_columns(r, columns);
  putchar('\n');
  ea_header_print(stdout, columns, NUM_COLUMNS);
}

void ea_replay_print_record(const ea_replay_result *r) {
  print_row(r, ea_count_text(r->num_records).text, &r->records[r->num_records - 1]);
}

static int compare_double(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void print_spread(const ea_replay_result *r) {
  const size_t n = (size_t)r->num_records;
  double *ms = malloc(n * sizeof *ms);
  if (!ms) return;
  for (size_t i = 0; i < n; i++) ms[i] = r->records[i].elapsed_ms;
  qsort(ms, n, sizeof *ms, compare_double);
  printf("a batch took %s ms at least, %s at the median, %s at most\n", ms_text(ms[0]).text, ms_text(ms[n / 2]).text,
         ms_text(ms[n - 1]).text);
  free(ms);
}

void ea_replay_print_summary(const ea_replay_result *r) {
  const ea_trace_totals *t = &r->totals;
  const ea_replay_record total = {t->sequences, t->new_tokens, t->prefix_tokens, t->visible_pairs, r->elapsed_ms};
  const bool bold = ea_wants_color(stdout);
  if (bold) fputs("\033[1m", stdout);
  print_row(r, "total", &total);
  if (bold) fputs("\033[0m", stdout);
  putchar('\n');
  printf("%s batches in %s ms: %s new tokens/s, %s TFLOP/s (attention of one layer)\n", ea_count_text(t->batches).text,
         ms_text(r->elapsed_ms).text, ea_count_text((int64_t)per_second(t->new_tokens, r->elapsed_ms)).text,
         tflops_text(r, t->visible_pairs, r->elapsed_ms).text);
  print_spread(r);
}
