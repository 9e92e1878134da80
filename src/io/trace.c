/* Reads traces (JSON lines, taken for hostile) and cuts them into batches. */
#include "io/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "plan/walk.h"

/* ------------------------------------------------------------------------------------
 * Reading
 * ---------------------------------------------------------------------------------- */

typedef struct reader {
  const char *path;
  FILE *file;
  int64_t line; /* 1 for the first */
  char *text;   /* of the line, not terminated by a zero */
  size_t length, capacity;
  int64_t request_capacity, hash_capacity;
  int64_t max_pairs; /* that the requests so far may have: below 2^63, so that no count overflows */
} reader;

static ea_status out_of_memory(const reader *r) {
  return ea_fail(EA_ERR_OUT_OF_MEMORY, "%s: line %" PRId64 ": out of memory", r->path, r->line);
}

/* The array with room for one element more, perhaps moved; NULL (and the old one still there)
 * when there is no memory. */
static void *grown(void *data, size_t element_bytes, int64_t count, int64_t *capacity) {
  if (count < *capacity) return data;
  const int64_t larger = *capacity ? *capacity * 2 : 1024;
  void *moved = realloc(data, (size_t)larger * element_bytes);
  if (moved) *capacity = larger;
  return moved;
}

/* Reads a line without its newline; *end is set when there was none left. */
static ea_status read_line(reader *r, bool *end) {
  r->line++;
  r->length = 0;
  int c;
  while ((c = getc_unlocked(r->file)) != EOF && c != '\n') {
    if (r->length == EA_TRACE_MAX_LINE_BYTES) {
      return ea_fail(EA_ERR_INVALID, "%s: line %" PRId64 ": found more than %d bytes, allowed %d", r->path, r->line,
                     EA_TRACE_MAX_LINE_BYTES, EA_TRACE_MAX_LINE_BYTES);
    }
    if (r->length == r->capacity) {
      const size_t larger = r->capacity ? r->capacity * 2 : 4096;
      char *moved = realloc(r->text, larger);
      if (!moved) return out_of_memory(r);
      r->text = moved;
      r->capacity = larger;
    }
    r->text[r->length++] = (char)c;
  }
  if (c == EOF && ferror(r->file)) return ea_fail(EA_ERR_INVALID, "%s: %s", r->path, strerror(errno));
  *end = c == EOF && r->length == 0;
  return EA_OK;
}

static bool is_blank(const reader *r) {
  for (size_t i = 0; i < r->length; i++) {
    if (!strchr(" \t\r", r->text[i]) || !r->text[i]) return false;
  }
  return true;
}

static const char *json_type_name(const json_t *value) {
  if (!value) return "nothing";
  switch (json_typeof(value)) {
  case JSON_OBJECT:
    return "an object";
  case JSON_ARRAY:
    return "an array";
  case JSON_STRING:
    return "a string";
  case JSON_INTEGER:
    return "an integer";
  case JSON_REAL:
    return "a number with a fraction or exponent";
  case JSON_NULL:
    return "null";
  default:
    return "a boolean";
  }
}

static ea_status add_input_length(reader *r, const json_t *object, ea_trace_request *request) {
  const json_t *value = json_object_get(object, "input_length");
  if (!json_is_integer(value)) {
    return ea_fail(EA_ERR_INVALID, "%s: line %" PRId64 ": input_length: found %s, allowed an integer", r->path, r->line,
                   json_type_name(value));
  }
  const int64_t length = json_integer_value(value);
  if (length < 1 || length > EA_MAX_SEQ_LEN) {
    return ea_fail(EA_ERR_INVALID, "%s: line %" PRId64 ": input_length: found %" PRId64 ", allowed 1 to %d", r->path,
                   r->line, length, EA_MAX_SEQ_LEN);
  }
  /* A prefix only takes pairs away. */
  if (__builtin_add_overflow(r->max_pairs, length * (length + 1) / 2, &r->max_pairs)) {
    return ea_fail(EA_ERR_INVALID,
                   "%s: line %" PRId64 ": input_length: found %" PRId64 ", which takes the trace past "
                   "2^63 pairs of tokens",
                   r->path, r->line, length);
  }
  request->input_length = (int32_t)length;
  return EA_OK;
}

static ea_status add_hash_ids(reader *r, const json_t *object, ea_trace *trace, ea_trace_request *request) {
  const json_t *ids = json_object_get(object, "hash_ids");
  if (!json_is_array(ids)) {
    return ea_fail(EA_ERR_INVALID, "%s: line %" PRId64 ": hash_ids: found %s, allowed an array of integers", r->path,
                   r->line, json_type_name(ids));
  }
  request->first_hash = trace->num_hashes;
  for (size_t i = 0; i < json_array_size(ids); i++) {
    const json_t *id = json_array_get(ids, i);
    if (!json_is_integer(id)) {
      return ea_fail(EA_ERR_INVALID, "%s: line %" PRId64 ": hash_ids[%zu]: found %s, allowed an integer", r->path,
                     r->line, i, json_type_name(id));
    }
    int64_t *grown_ids = grown(trace->hash_ids, sizeof *grown_ids, trace->num_hashes, &r->hash_capacity);
    if (!grown_ids) return out_of_memory(r);
    trace->hash_ids = grown_ids;
    trace->hash_ids[trace->num_hashes++] = json_integer_value(id);
  }
  request->num_hashes = trace->num_hashes - request->first_hash;
  return EA_OK;
}

static ea_status add_request(reader *r, const json_t *object, ea_trace *trace) {
  if (!json_is_object(object)) {
    return ea_fail(EA_ERR_INVALID, "%s: line %" PRId64 ": found %s, allowed an object", r->path, r->line,
                   json_type_name(object));
  }
  ea_trace_request request = {0};
  ea_status status = add_input_length(r, object, &request);
  if (status == EA_OK) status = add_hash_ids(r, object, trace, &request);
  if (status != EA_OK) return status;
  ea_trace_request *requests = grown(trace->requests, sizeof *requests, trace->num_requests, &r->request_capacity);
  if (!requests) return out_of_memory(r);
  trace->requests = requests;
  trace->requests[trace->num_requests++] = request;
  return EA_OK;
}

/* Text from a file, made fit for one line of a terminal. */
static void make_printable(char *text) {
  for (; *text; text++) {
    if (*text < ' ' || *text > '~') *text = '?';
  }
}

static ea_status parse_line(reader *r, ea_trace *trace) {
  json_error_t error;
  json_t *object = json_loadb(r->text, r->length, JSON_REJECT_DUPLICATES, &error);
  if (!object) {
    make_printable(error.text);
    return ea_fail(EA_ERR_INVALID, "%s: line %" PRId64 ": byte %d: %s", r->path, r->line, error.position, error.text);
  }
  const ea_status status = add_request(r, object, trace);
  json_decref(object);
  return status;
}

static ea_status read_requests(reader *r, int64_t max_requests, ea_trace *trace) {
  while (trace->num_requests < max_requests) {
    bool end = false;
    ea_status status = read_line(r, &end);
    if (status != EA_OK) return status;
    if (end) break;
    if (is_blank(r)) continue;
    status = parse_line(r, trace);
    if (status != EA_OK) return status;
  }
  if (trace->num_requests == 0) return ea_fail(EA_ERR_INVALID, "%s: found no request, allowed one or more", r->path);
  return EA_OK;
}

ea_status ea_trace_read(const char *path, int64_t max_requests, ea_trace *trace) {
  const bool standard_input = !strcmp(path, "-");
  *trace = (ea_trace){0};
  reader r = {.path = standard_input ? "standard input" : path};
  r.file = standard_input ? stdin : fopen(path, "r");
  if (!r.file) return ea_fail(EA_ERR_INVALID, "%s: %s", path, strerror(errno));
  const ea_status status = read_requests(&r, max_requests, trace);
  if (!standard_input) fclose(r.file);
  free(r.text);
  if (status != EA_OK) ea_trace_free(trace);
  return status;
}

void ea_trace_free(ea_trace *trace) {
  free(trace->requests);
  free(trace->hash_ids);
  *trace = (ea_trace){0};
}

/* ------------------------------------------------------------------------------------
 * The cache of blocks: hash id to block number, open addressing
 * ---------------------------------------------------------------------------------- */

typedef struct cache_entry {
  int64_t hash_id;
  int64_t block; /* -1: free */
} cache_entry;

struct ea_schedule {
  const ea_trace *trace;
  int64_t budget;
  cache_entry *cache;
  size_t cache_mask;    /* entries - 1; more than twice the hash ids of the trace, so it never grows */
  int64_t num_blocks;   /* numbered so far */
  int64_t next_request; /* to be admitted */
  ea_trace_piece rest;  /* what is left of the last one admitted: extend 0 when nothing */
  ea_trace_piece *pieces;
  int64_t piece_capacity;
};

/* splitmix64's output function. */
static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

/* The entry of a hash id, or the free one that it would take. */
static cache_entry *find_entry(const ea_schedule *schedule, int64_t hash_id) {
  size_t i = (size_t)mix((uint64_t)hash_id) & schedule->cache_mask;
  while (schedule->cache[i].block >= 0 && schedule->cache[i].hash_id != hash_id) i = (i + 1) & schedule->cache_mask;
  return &schedule->cache[i];
}

/* ------------------------------------------------------------------------------------
 * Batches
 * ---------------------------------------------------------------------------------- */

ea_status ea_schedule_create(const ea_trace *trace, int64_t budget, ea_schedule **schedule) {
  *schedule = NULL;
  if (budget < 1) return ea_fail(EA_ERR_INVALID, "budget: found %" PRId64 ", allowed 1 or more", budget);
  size_t entries = 1024;
  while (entries < (size_t)trace->num_hashes * 2) entries *= 2;
  ea_schedule *s = calloc(1, sizeof *s);
  if (s) s->cache = malloc(entries * sizeof *s->cache);
  if (!s || !s->cache) {
    free(s);
    return ea_fail(EA_ERR_OUT_OF_MEMORY, "trace: no memory for a cache of %zu blocks", entries);
  }
  for (size_t i = 0; i < entries; i++) s->cache[i].block = -1;
  s->cache_mask = entries - 1;
  s->trace = trace;
  s->budget = budget;
  *schedule = s;
  return EA_OK;
}

void ea_schedule_destroy(ea_schedule *schedule) {
  if (!schedule) return;
  free(schedule->cache);
  free(schedule->pieces);
  free(schedule);
}

static int64_t blocks_of(int64_t tokens) {
  return (tokens + EA_TRACE_BLOCK_TOKENS - 1) / EA_TRACE_BLOCK_TOKENS;
}

/* The next request becomes the rest: all that its cached blocks leave to be computed. */
static void admit(ea_schedule *s) {
  const ea_trace_request *request = &s->trace->requests[s->next_request];
  const int64_t *ids = request->num_hashes > 0 ? s->trace->hash_ids + request->first_hash : NULL;
  int64_t cached = 0;
  while (cached < request->num_hashes && find_entry(s, ids[cached])->block >= 0) cached++;
  for (int64_t i = cached; i < request->num_hashes; i++) {
    cache_entry *entry = find_entry(s, ids[i]);
    if (entry->block < 0) *entry = (cache_entry){ids[i], s->num_blocks++};
  }
  int64_t prefix = cached * EA_TRACE_BLOCK_TOKENS;
  if (prefix > request->input_length - 1) prefix = request->input_length - 1;
  s->rest.request = s->next_request++;
  s->rest.prefix = (int32_t)prefix;
  s->rest.extend = (int32_t)(request->input_length - prefix);
  s->rest.private_block = s->num_blocks;
  const int64_t unnamed = blocks_of(request->input_length) - request->num_hashes;
  if (unnamed > 0) s->num_blocks += unnamed;
}

static void add_to_batch(ea_trace_batch *batch, const ea_trace_piece *piece) {
  const int64_t prefix = piece->prefix, extend = piece->extend;
  batch->num_pieces++;
  batch->new_tokens += extend;
  batch->prefix_tokens += prefix;
  batch->visible_pairs += extend * prefix + extend * (extend + 1) / 2;
}

ea_status ea_schedule_next(ea_schedule *s, ea_trace_batch *batch) {
  *batch = (ea_trace_batch){0};
  while (batch->new_tokens < s->budget && (s->rest.extend > 0 || s->next_request < s->trace->num_requests)) {
    ea_trace_piece *pieces = grown(s->pieces, sizeof *pieces, batch->num_pieces, &s->piece_capacity);
    if (!pieces) {
      return ea_fail(EA_ERR_OUT_OF_MEMORY, "trace: no memory for a batch of %" PRId64 " sequences", batch->num_pieces);
    }
    s->pieces = pieces;
    if (s->rest.extend == 0) admit(s);
    ea_trace_piece *piece = &s->pieces[batch->num_pieces];
    const int64_t room = s->budget - batch->new_tokens;
    *piece = s->rest;
    if (piece->extend > room) piece->extend = (int32_t)room;
    s->rest.prefix += piece->extend;
    s->rest.extend -= piece->extend;
    add_to_batch(batch, piece);
  }
  batch->pieces = s->pieces;
  return EA_OK;
}

void ea_schedule_blocks(const ea_schedule *s, const ea_trace_piece *piece, int64_t *blocks) {
  const ea_trace_request *request = &s->trace->requests[piece->request];
  const int64_t *ids = s->trace->hash_ids + request->first_hash;
  for (int64_t i = 0; i < blocks_of(piece->prefix); i++) {
    blocks[i] = i < request->num_hashes ? find_entry(s, ids[i])->block : piece->private_block + i - request->num_hashes;
  }
}

static int64_t max_i64(int64_t a, int64_t b) {
  return a > b ? a : b;
}

ea_status ea_trace_count(const ea_trace *trace, int64_t budget, ea_trace_totals *totals) {
  *totals = (ea_trace_totals){0};
  ea_schedule *schedule;
  ea_status status = ea_schedule_create(trace, budget, &schedule);
  if (!schedule) return status;
  ea_trace_batch batch;
  while ((status = ea_schedule_next(schedule, &batch)) == EA_OK && batch.num_pieces > 0) {
    totals->batches++;
    totals->sequences += batch.num_pieces;
    totals->new_tokens += batch.new_tokens;
    totals->prefix_tokens += batch.prefix_tokens;
    totals->visible_pairs += batch.visible_pairs;
    totals->max_sequences = max_i64(totals->max_sequences, batch.num_pieces);
    totals->max_new_tokens = max_i64(totals->max_new_tokens, batch.new_tokens);
    totals->max_prefix_tokens = max_i64(totals->max_prefix_tokens, batch.prefix_tokens);
    totals->max_visible_pairs = max_i64(totals->max_visible_pairs, batch.visible_pairs);
  }
  totals->blocks = schedule->num_blocks;
  ea_schedule_destroy(schedule);
  return status;
}
