/* Traces: hostile files are refused with the line and the reason, and the batches are those
 * that the rules give, held against a second, naive reading of the rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h> /* after the headers above */

#include "check/random.h"
#include "io/trace.h"
#include "plan/walk.h"

/* ------------------------------------------------------------------------------------
 * Files
 * ---------------------------------------------------------------------------------- */

static char path[] = "/tmp/extattn-trace-XXXXXX";

static int make_file(void **state) {
  (void)state;
  const int fd = mkstemp(path);
  if (fd < 0) return -1;
  close(fd);
  return 0;
}

static int remove_file(void **state) {
  (void)state;
  return unlink(path);
}

static void write_file(const void *bytes, size_t n) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  assert_int_equal(fclose(file), 0);
}

static ea_status read_text(const char *text, int64_t max_requests, ea_trace *trace) {
  write_file(text, strlen(text));
  return ea_trace_read(path, max_requests, trace);
}

static void assert_refused(const char *text, const char *reason) {
  ea_trace trace;
  const ea_status status = read_text(text, INT64_MAX, &trace);
  if (status != EA_ERR_INVALID || !strstr(ea_last_error(), reason)) {
    fail_msg("'%.60s': expected '%s', got status %d, '%s'", text, reason, (int)status,
             status == EA_OK ? "" : ea_last_error());
  }
  assert_null(strchr(ea_last_error(), '\n'));
  assert_null(trace.requests);
  assert_null(trace.hash_ids);
  assert_int_equal(trace.num_requests, 0);
}

static void reads_what_is_there(void **state) {
  (void)state;
  ea_trace trace;
  const char *text = "{\"timestamp\": 0, \"input_length\": 1300, \"output_length\": 5, \"hash_ids\": [7, -1, 9]}\r\n"
                     "\n  \t\n"
                     "{\"hash_ids\":[],\"input_length\":1}\n"
                     "{\"input_length\": 600, \"hash_ids\": [9223372036854775807, 7]}"; /* no newline at the end */
  assert_int_equal(read_text(text, INT64_MAX, &trace), EA_OK);
  assert_int_equal(trace.num_requests, 3);
  assert_int_equal(trace.num_hashes, 5);
  assert_int_equal(trace.requests[0].input_length, 1300);
  assert_int_equal(trace.requests[0].num_hashes, 3);
  assert_int_equal(trace.hash_ids[1], -1);
  assert_int_equal(trace.requests[1].num_hashes, 0);
  assert_int_equal(trace.requests[2].first_hash, 3);
  assert_true(trace.hash_ids[3] == INT64_MAX);
  ea_trace_free(&trace);
  assert_null(trace.requests);

  /* What comes after the last request that is wanted is not looked at. */
  assert_int_equal(read_text("{\"input_length\": 1, \"hash_ids\": []}\nnot JSON\n", 1, &trace), EA_OK);
  assert_int_equal(trace.num_requests, 1);
  ea_trace_free(&trace);
}

static void refuses_with_line_and_reason(void **state) {
  (void)state;
#define GOOD "{\"input_length\": 5, \"hash_ids\": [0]}\n"
  assert_refused("", "found no request");
  assert_refused("\n \n", "found no request");
  assert_refused(GOOD "{", "line 2: byte");
  assert_refused(GOOD GOOD "{\"input_length\": 5, \"hash_ids\": [0]", "line 3: byte");
  assert_refused(GOOD "[1]", "line 2: found an array, allowed an object");
  assert_refused("{}", "line 1: input_length: found nothing, allowed an integer");
  assert_refused("{\"input_length\": 5}", "line 1: hash_ids: found nothing, allowed an array");
  assert_refused("{\"input_length\": 5, \"hash_ids\": 0}", "hash_ids: found an integer, allowed an array");
  assert_refused("{\"input_length\": 5, \"hash_ids\": [0, \"1\"]}", "hash_ids[1]: found a string, allowed an integer");
  assert_refused("{\"input_length\": 5, \"hash_ids\": [1.0]}", "hash_ids[0]: found a number with a fraction");
  assert_refused("{\"input_length\": 5, \"hash_ids\": [9223372036854775808]}", "line 1: byte");
  assert_refused("{\"input_length\": 0, \"hash_ids\": []}", "input_length: found 0, allowed 1 to");
  assert_refused("{\"input_length\": -3, \"hash_ids\": []}", "input_length: found -3, allowed 1 to");
  assert_refused("{\"input_length\": 2147483647, \"hash_ids\": []}", "input_length: found 2147483647, allowed 1 to");
  assert_refused("{\"input_length\": 5e3, \"hash_ids\": []}", "input_length: found a number with a fraction");
  assert_refused("{\"input_length\": true, \"hash_ids\": []}", "input_length: found a boolean");
  assert_refused("{\"input_length\": 5, \"input_length\": 6, \"hash_ids\": []}", "line 1: byte");
  assert_refused(GOOD GOOD "{\"input_length\": 5, \"hash_ids\": []} trailing\n", "line 3: byte");
  assert_refused("\xff\xfe{\"input_length\": 5, \"hash_ids\": []}\n", "line 1: byte");

  /* Text from the file does not reach the terminal as it is. */
  assert_refused("\x1b[31m{}", "line 1");
  assert_null(strchr(ea_last_error(), '\x1b'));
}

static void refuses_a_zero_byte(void **state) {
  (void)state;
  ea_trace trace;
  const char bytes[] = "{\"input_length\": 5, \"hash_ids\": []}\0\n";
  write_file(bytes, sizeof bytes - 1);
  assert_int_equal(ea_trace_read(path, INT64_MAX, &trace), EA_ERR_INVALID);
  write_file("\0\n", 2); /* a line of nothing but one is not blank */
  assert_int_equal(ea_trace_read(path, INT64_MAX, &trace), EA_ERR_INVALID);
}

static void refuses_what_overflows(void **state) {
  (void)state;
  /* Four of the longest requests have just less than 2^63 pairs, five have more. */
  char text[512];
  int used = 0;
  for (int i = 0; i < 5; i++) {
    used +=
        snprintf(text + used, sizeof text - (size_t)used, "{\"input_length\": %d, \"hash_ids\": []}\n", EA_MAX_SEQ_LEN);
  }
  assert_refused(text, "line 5: input_length: found");
  ea_trace trace;
  ea_trace_totals totals;
  assert_int_equal(read_text(text, 4, &trace), EA_OK);
  assert_int_equal(ea_trace_count(&trace, INT64_MAX, &totals), EA_OK);
  const int64_t n = EA_MAX_SEQ_LEN;
  assert_int_equal(totals.batches, 1);
  assert_int_equal(totals.new_tokens, 4 * n);
  assert_true(totals.visible_pairs == 4 * (n * (n + 1) / 2));
  ea_trace_free(&trace);
}

static void refuses_endless_lines(void **state) {
  (void)state;
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  for (int i = 0; i <= EA_TRACE_MAX_LINE_BYTES; i++) fputc(' ', file);
  assert_int_equal(fclose(file), 0);
  ea_trace trace;
  assert_int_equal(ea_trace_read(path, INT64_MAX, &trace), EA_ERR_INVALID);
  assert_non_null(strstr(ea_last_error(), "line 1: found more than 16777216 bytes"));

  assert_int_equal(ea_trace_read("/nowhere/trace.jsonl", INT64_MAX, &trace), EA_ERR_INVALID);
  assert_non_null(strstr(ea_last_error(), "/nowhere/trace.jsonl: No such file"));
  assert_int_equal(ea_trace_read("/tmp", INT64_MAX, &trace), EA_ERR_INVALID);
  assert_non_null(strstr(ea_last_error(), "directory"));
}

/* Cut anywhere and damaged anywhere, a file is read or refused, and nothing worse. */
static void survives_damage(void **state) {
  (void)state;
  const char text[] = "{\"input_length\": 1300, \"hash_ids\": [7, 8, 9]}\n{\"input_length\": 30, \"hash_ids\": [7]}\n";
  const size_t n = sizeof text - 1;
  ea_trace trace;
  int refused = 0;
  for (size_t cut = 0; cut < n; cut++) {
    write_file(text, cut);
    refused += ea_trace_read(path, INT64_MAX, &trace) != EA_OK;
    ea_trace_free(&trace);
  }
  assert_true(refused > 70); /* all but the cuts behind a whole line */
  assert_true(refused < (int)n);
  ea_rng rng = ea_rng_of(1);
  for (int i = 0; i < 2000; i++) {
    char damaged[sizeof text];
    memcpy(damaged, text, sizeof text);
    for (int k = ea_rng_range(&rng, 1, 3); k > 0; k--) {
      damaged[ea_rng_below(&rng, (uint32_t)n)] = (char)ea_rng_below(&rng, 256);
    }
    write_file(damaged, n);
    const ea_status status = ea_trace_read(path, INT64_MAX, &trace);
    assert_true(status == EA_OK || status == EA_ERR_INVALID);
    ea_trace_free(&trace);
  }
}

/* ------------------------------------------------------------------------------------
 * The rules, naively: a list of what is cached, one token at a time
 * ---------------------------------------------------------------------------------- */

enum { MAX_CACHED = 4096, MAX_PIECES = 4096 };

typedef struct naive {
  int64_t cached[MAX_CACHED];
  int num_cached;
  struct {
    int64_t batch, request, prefix, extend;
  } pieces[MAX_PIECES];
  int num_pieces;
} naive;

static bool is_cached(const naive *n, int64_t id) {
  for (int i = 0; i < n->num_cached; i++) {
    if (n->cached[i] == id) return true;
  }
  return false;
}

static int64_t naive_prefix(const naive *n, const ea_trace *trace, const ea_trace_request *request) {
  int64_t prefix = 0;
  for (int64_t i = 0; i < request->num_hashes; i++) {
    if (!is_cached(n, trace->hash_ids[request->first_hash + i])) break;
    prefix += 512;
  }
  return prefix < request->input_length ? prefix : request->input_length - 1;
}

static void naive_schedule(naive *n, const ea_trace *trace, int64_t budget) {
  *n = (naive){0};
  int64_t batch = 0, filled = 0;
  for (int64_t r = 0; r < trace->num_requests; r++) {
    const ea_trace_request *request = &trace->requests[r];
    int64_t position = naive_prefix(n, trace, request);
    for (int64_t i = 0; i < request->num_hashes; i++)
      n->cached[n->num_cached++] = trace->hash_ids[request->first_hash + i];
    bool first = true;
    for (; position < request->input_length; position++, filled++) {
      if (filled == budget) {
        batch++;
        filled = 0;
        first = true;
      }
      if (first) {
        n->pieces[n->num_pieces].batch = batch;
        n->pieces[n->num_pieces].request = r;
        n->pieces[n->num_pieces].prefix = position;
        n->pieces[n->num_pieces++].extend = 0;
        first = false;
      }
      n->pieces[n->num_pieces - 1].extend++;
    }
  }
}

static void random_trace(ea_rng *rng, ea_trace *trace) {
  *trace = (ea_trace){0};
  trace->num_requests = ea_rng_range(rng, 1, 12);
  trace->requests = calloc((size_t)trace->num_requests, sizeof *trace->requests);
  trace->hash_ids = calloc(512, sizeof *trace->hash_ids);
  const bool consistent = ea_rng_percent(rng, 70); /* as many ids as there are blocks */
  for (int64_t r = 0; r < trace->num_requests; r++) {
    ea_trace_request *request = &trace->requests[r];
    request->input_length = ea_rng_percent(rng, 20) ? ea_rng_range(rng, 1, 4) * 512 : ea_rng_range(rng, 1, 3000);
    request->first_hash = trace->num_hashes;
    request->num_hashes = consistent ? (request->input_length + 511) / 512 : ea_rng_range(rng, 0, 8);
    for (int64_t i = 0; i < request->num_hashes; i++) { /* few ids: much is shared, also out of order */
      trace->hash_ids[trace->num_hashes++] = ea_rng_percent(rng, 70) ? i : ea_rng_range(rng, 0, 30);
    }
  }
}

static void check_blocks(const ea_schedule *schedule, const ea_trace *trace, const ea_trace_piece *piece,
                         int64_t *block_of_id) {
  int64_t blocks[16];
  const ea_trace_request *request = &trace->requests[piece->request];
  ea_schedule_blocks(schedule, piece, blocks);
  for (int64_t i = 0; i < (piece->prefix + 511) / 512; i++) {
    assert_true(blocks[i] >= 0);
    if (i >= request->num_hashes) { /* the request's own, and no other's */
      assert_int_equal(blocks[i], piece->private_block + i - request->num_hashes);
      continue;
    }
    int64_t *expected = &block_of_id[trace->hash_ids[request->first_hash + i]]; /* one id, one block */
    if (*expected < 0) *expected = blocks[i];
    assert_int_equal(blocks[i], *expected);
  }
}

static void check_trace(uint64_t seed) {
  static naive expected;
  ea_rng rng = ea_rng_of(seed);
  ea_trace trace;
  random_trace(&rng, &trace);
  const int64_t budget = ea_rng_percent(&rng, 30) ? ea_rng_range(&rng, 1, 64) + 16 : ea_rng_range(&rng, 100, 4000);
  naive_schedule(&expected, &trace, budget);

  int64_t block_of_id[64];
  for (int i = 0; i < 64; i++) block_of_id[i] = -1;
  ea_schedule *schedule = NULL;
  assert_int_equal(ea_schedule_create(&trace, budget, &schedule), EA_OK);
  ea_trace_batch batch;
  ea_trace_totals sums = {0}, totals;
  int at = 0;
  for (int64_t b = 0;; b++) {
    assert_int_equal(ea_schedule_next(schedule, &batch), EA_OK);
    if (batch.num_pieces == 0) break;
    int64_t new_tokens = 0, prefix_tokens = 0, pairs = 0;
    for (int64_t i = 0; i < batch.num_pieces; i++, at++) {
      const ea_trace_piece *piece = &batch.pieces[i];
      if (at >= expected.num_pieces || expected.pieces[at].batch != b ||
          expected.pieces[at].request != piece->request || expected.pieces[at].prefix != piece->prefix ||
          expected.pieces[at].extend != piece->extend) {
        fail_msg("seed %llu, budget %lld: piece %d is not what the rules say", (unsigned long long)seed,
                 (long long)budget, at);
      }
      new_tokens += piece->extend;
      prefix_tokens += piece->prefix;
      for (int64_t q = 0; q < piece->extend; q++) pairs += piece->prefix + q + 1;
      check_blocks(schedule, &trace, piece, block_of_id);
    }
    assert_int_equal(batch.new_tokens, new_tokens);
    assert_int_equal(batch.prefix_tokens, prefix_tokens);
    assert_int_equal(batch.visible_pairs, pairs);
    assert_true(new_tokens <= budget);
    sums.batches++;
    sums.sequences += batch.num_pieces;
    sums.new_tokens += new_tokens;
    sums.prefix_tokens += prefix_tokens;
    sums.visible_pairs += pairs;
    if (pairs > sums.max_visible_pairs) sums.max_visible_pairs = pairs;
    if (new_tokens > sums.max_new_tokens) sums.max_new_tokens = new_tokens;
    if (prefix_tokens > sums.max_prefix_tokens) sums.max_prefix_tokens = prefix_tokens;
    if (batch.num_pieces > sums.max_sequences) sums.max_sequences = batch.num_pieces;
  }
  assert_int_equal(at, expected.num_pieces);
  ea_schedule_destroy(schedule);
  assert_int_equal(ea_trace_count(&trace, budget, &totals), EA_OK);
  sums.blocks = totals.blocks;
  assert_memory_equal(&sums, &totals, sizeof sums);
  ea_trace_free(&trace);
}

static void batches_follow_the_rules(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 500; seed++) check_trace(seed);
}

/* Private blocks of two requests never coincide, and never with a named one. */
static void blocks_are_told_apart(void **state) {
  (void)state;
  ea_trace trace;
  ea_trace_batch batch;
  ea_schedule *schedule = NULL;
  const char *text = "{\"input_length\": 1500, \"hash_ids\": [4]}\n"
                     "{\"input_length\": 1500, \"hash_ids\": [4, 5]}\n"
                     "{\"input_length\": 1500, \"hash_ids\": []}\n";
  assert_int_equal(read_text(text, INT64_MAX, &trace), EA_OK);
  assert_int_equal(ea_schedule_create(&trace, 1499, &schedule), EA_OK); /* each request's last token apart */
  bool taken[16] = {false};
  int64_t pieces = 0, named = -1;
  while (ea_schedule_next(schedule, &batch) == EA_OK && batch.num_pieces > 0) {
    for (int64_t i = 0; i < batch.num_pieces; i++) {
      if (batch.pieces[i].prefix + batch.pieces[i].extend < 1500) continue;
      int64_t blocks[3];
      ea_schedule_blocks(schedule, &batch.pieces[i], blocks);
      for (int k = 0; k < 3 && k * 512 < batch.pieces[i].prefix; k++) {
        assert_in_range(blocks[k], 0, 15);
        if (k == 0 && batch.pieces[i].request < 2) { /* id 4 */
          if (named >= 0) assert_int_equal(blocks[k], named);
          named = blocks[k];
          continue;
        }
        assert_false(taken[blocks[k]]);
        taken[blocks[k]] = true;
      }
      pieces++;
    }
  }
  assert_true(pieces >= 3);
  assert_false(taken[named]);
  ea_schedule_destroy(schedule);
  ea_trace_free(&trace);
}

static void refuses_a_budget_of_nothing(void **state) {
  (void)state;
  ea_trace trace;
  ea_trace_totals totals;
  assert_int_equal(read_text(GOOD, INT64_MAX, &trace), EA_OK);
  assert_int_equal(ea_trace_count(&trace, 0, &totals), EA_ERR_INVALID);
  assert_non_null(strstr(ea_last_error(), "budget: found 0"));
  ea_trace_free(&trace);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_what_is_there),         cmocka_unit_test(refuses_with_line_and_reason),
      cmocka_unit_test(refuses_a_zero_byte),         cmocka_unit_test(refuses_what_overflows),
      cmocka_unit_test(refuses_endless_lines),       cmocka_unit_test(survives_damage),
      cmocka_unit_test(batches_follow_the_rules),    cmocka_unit_test(blocks_are_told_apart),
      cmocka_unit_test(refuses_a_budget_of_nothing),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
