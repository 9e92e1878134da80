/* Writing safetensors: header and data straight from the caller's views, no packed copy in
 * memory. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "io/new_file.h"
#include "io/safetensors.h"

#define PREFIX_BYTES 8
#define DATA_ALIGNMENT 64 /* of the data in the file: a cache line; the format asks for 8 */

void ea_st_pack(ea_st_source *source) {
  int64_t stride = (int64_t)ea_st_dtype_size(source->dtype);
  for (int32_t i = source->rank - 1; i >= 0; --i) {
    source->stride_bytes[i] = stride;
    stride *= source->shape[i];
  }
}

static int64_t bytes_of(const ea_st_source *source) {
  int64_t bytes = (int64_t)ea_st_dtype_size(source->dtype);
  for (int32_t i = 0; i < source->rank; ++i) bytes *= source->shape[i];
  return bytes;
}

/* order[] lists the sources by falling element size, so that every offset is a multiple of it;
 * equal ones keep the caller's order. */
static void sort_by_falling_size(size_t *order, const ea_st_source *sources, size_t n) {
  size_t filled = 0;
  for (size_t size = 8; size > 0; size /= 2) {
    for (size_t i = 0; i < n; ++i) {
      if (ea_st_dtype_size(sources[i].dtype) == size) order[filled++] = i;
    }
  }
}

/* ------------------------------------------------------------------------------------
 * The header: JSON, which is simple enough to write without a library
 * ---------------------------------------------------------------------------------- */

/* Text that grows; once memory is out (or a piece is not fit), it stays failed. */
typedef struct json_text {
  char *data;
  size_t bytes, capacity;
  bool failed;
} json_text;

static void append(json_text *t, const char *piece, size_t bytes) {
  if (t->failed) return;
  if (t->capacity - t->bytes <= bytes) { /* one more for the end */
    const size_t capacity = 2 * (t->capacity + bytes) + 64;
    char *data = realloc(t->data, capacity);
    if (!data) {
      t->failed = true;
      return;
    }
    t->data = data;
    t->capacity = capacity;
  }
  memcpy(t->data + t->bytes, piece, bytes);
  t->bytes += bytes;
  t->data[t->bytes] = '\0';
}

static void append_text(json_text *t, const char *piece) {
  append(t, piece, strlen(piece));
}

static void append_number(json_text *t, int64_t number) {
  char digits[24];
  append(t, digits, (size_t)snprintf(digits, sizeof digits, "%" PRId64, number));
}

/* Bytes of the UTF-8 character at c: 1 to 4, or 0 where there is none (RFC 3629). */
static size_t utf8_length(const unsigned char *c) {
  const size_t n = c[0] < 0x80                   ? 1
                   : c[0] >= 0xc2 && c[0] < 0xe0 ? 2
                   : c[0] >= 0xe0 && c[0] < 0xf0 ? 3
                   : c[0] >= 0xf0 && c[0] < 0xf5 ? 4
                                                 : 0;
  for (size_t i = 1; i < n; ++i) {
    if ((c[i] & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90);
  const bool surrogate = c[0] == 0xed && c[1] >= 0xa0;
  const bool too_large = c[0] == 0xf4 && c[1] >= 0x90;
  return overlong || surrogate || too_large ? 0 : n;
}

/* Quoted; what is not UTF-8 fails. */
static void append_string(json_text *t, const char *string) {
  append_text(t, "\"");
  size_t n;
  for (const char *c = string; *c && !t->failed; c += n) {
    const unsigned char byte = (unsigned char)*c;
    char escaped[8];
    n = utf8_length((const unsigned char *)c);
    if (n == 0) {
      t->failed = true;
    } else if (byte == '"' || byte == '\\') {
      append(t, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\%c", *c));
    } else if (byte < ' ') {
      append(t, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", byte));
    } else {
      append(t, c, n);
    }
  }
  append_text(t, "\"");
}

static void append_tensor(json_text *t, const ea_st_source *source, int64_t begin) {
  append_string(t, source->name);
  append_text(t, ":{\"dtype\":");
  append_string(t, ea_st_dtype_name(source->dtype));
  append_text(t, ",\"shape\":[");
  for (int32_t i = 0; i < source->rank; ++i) {
    if (i) append_text(t, ",");
    append_number(t, source->shape[i]);
  }
  append_text(t, "],\"data_offsets\":[");
  append_number(t, begin);
  append_text(t, ",");
  append_number(t, begin + bytes_of(source));
  append_text(t, "]}");
}

static void append_metadata(json_text *t, const ea_st_entry *metadata, size_t n) {
  append_text(t, "\"__metadata__\":{");
  for (size_t i = 0; i < n; ++i) {
    if (i) append_text(t, ",");
    append_string(t, metadata[i].key);
    append_text(t, ":");
    append_string(t, metadata[i].value);
  }
  append_text(t, "}");
}

/* The header's text, or NULL when out of memory (or when a text is not UTF-8). */
static char *header_text(const ea_st_source *sources, const size_t *order, size_t num_sources,
                         const ea_st_entry *metadata, size_t num_metadata) {
  json_text t = {0};
  append_text(&t, "{");
  if (num_metadata > 0) append_metadata(&t, metadata, num_metadata);
  int64_t begin = 0;
  for (size_t i = 0; i < num_sources; ++i) {
    const ea_st_source *source = &sources[order[i]];
    if (i > 0 || num_metadata > 0) append_text(&t, ",");
    append_tensor(&t, source, begin);
    begin += bytes_of(source);
  }
  append_text(&t, "}");
  if (!t.failed) return t.data;
  free(t.data);
  return NULL;
}

static void write_header(ea_new_file *file, const char *text) {
  static const char spaces[DATA_ALIGNMENT + 1] = "                                                                ";
  const size_t text_bytes = strlen(text);
  const size_t over = (PREFIX_BYTES + text_bytes) % DATA_ALIGNMENT;
  const size_t padding = over ? DATA_ALIGNMENT - over : 0;
  unsigned char prefix[PREFIX_BYTES];
  for (int i = 0; i < PREFIX_BYTES; ++i) prefix[i] = (unsigned char)((uint64_t)(text_bytes + padding) >> (8 * i));
  ea_new_file_write(file, prefix, sizeof prefix);
  ea_new_file_write(file, text, text_bytes);
  ea_new_file_write(file, spaces, padding);
}

/* Whether dimensions dim and up of a source lie packed in memory. */
static bool is_packed(const ea_st_source *source, int32_t dim) {
  ea_st_source packed = *source;
  ea_st_pack(&packed);
  for (int32_t i = dim; i < source->rank; ++i) {
    if (source->shape[i] > 1 && source->stride_bytes[i] != packed.stride_bytes[i]) return false;
  }
  return true;
}

/* Moves on to the next index of the outer dimensions, the last of them fastest; false after
 * the last one. */
static bool next_index(const ea_st_source *source, int32_t outer, int64_t *index, const char **data) {
  for (int32_t i = outer - 1; i >= 0; --i) {
    *data += source->stride_bytes[i];
    if (++index[i] < source->shape[i]) return true;
    *data -= index[i] * source->stride_bytes[i];
    index[i] = 0;
  }
  return false;
}

/* Block by block: what lies packed under one index of the outer dimensions. */
static void write_elements(ea_new_file *file, const ea_st_source *source) {
  if (bytes_of(source) == 0) return;
  int32_t outer = 0;
  while (!is_packed(source, outer)) ++outer;
  size_t block_bytes = ea_st_dtype_size(source->dtype);
  for (int32_t i = outer; i < source->rank; ++i) block_bytes *= (size_t)source->shape[i];

  int64_t index[EA_ST_MAX_RANK] = {0};
  const char *data = source->data;
  do {
    ea_new_file_write(file, data, block_bytes);
  } while (next_index(source, outer, index, &data));
}

static ea_status write_file(const char *path, const char *header, const ea_st_source *sources, const size_t *order,
                            size_t num_sources) {
  ea_new_file *file;
  const ea_status status = ea_new_file_open(path, &file);
  if (status) return status;
  write_header(file, header);
  for (size_t i = 0; i < num_sources; ++i) write_elements(file, &sources[order[i]]);
  return ea_new_file_commit(file);
}

ea_status ea_st_write(const char *path, const ea_st_source *sources, size_t num_sources, const ea_st_entry *metadata,
                      size_t num_metadata) {
  size_t *order = calloc(num_sources + 1, sizeof *order);
  char *header = NULL;
  if (order) {
    sort_by_falling_size(order, sources, num_sources);
    header = header_text(sources, order, num_sources, metadata, num_metadata);
  }
  const ea_status status = header ? write_file(path, header, sources, order, num_sources)
                                  : ea_fail(EA_ERR_OUT_OF_MEMORY, "%s: out of memory", path);
  free(header);
  free(order);
  return status;
}
