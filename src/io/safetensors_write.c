/* Writing safetensors: header and data straight from the caller's views, no packed copy in
 * memory. */
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
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

static json_t *tensor_json(const ea_st_source *source, int64_t begin) {
  json_t *shape = json_array();
  for (int32_t i = 0; i < source->rank; ++i) json_array_append_new(shape, json_integer(source->shape[i]));
  return json_pack("{s:s, s:o, s:[I, I]}", "dtype", ea_st_dtype_name(source->dtype), "shape", shape, "data_offsets",
                   (json_int_t)begin, (json_int_t)(begin + bytes_of(source)));
}

static json_t *metadata_json(const ea_st_entry *metadata, size_t n) {
  json_t *json = json_object();
  bool ok = json != NULL;
  for (size_t i = 0; i < n && ok; ++i) {
    ok = json_object_set_new(json, metadata[i].key, json_string(metadata[i].value)) == 0;
  }
  if (ok) return json;
  json_decref(json);
  return NULL;
}

/* The header's text, or NULL when out of memory (or when a text is not UTF-8). */
static char *header_text(const ea_st_source *sources, const size_t *order, size_t num_sources,
                         const ea_st_entry *metadata, size_t num_metadata) {
  json_t *root = json_object();
  bool ok = num_metadata == 0 || json_object_set_new(root, "__metadata__", metadata_json(metadata, num_metadata)) == 0;
  int64_t begin = 0;
  for (size_t i = 0; i < num_sources && ok; ++i) {
    const ea_st_source *source = &sources[order[i]];
    ok = json_object_set_new(root, source->name, tensor_json(source, begin)) == 0;
    begin += bytes_of(source);
  }
  char *text = ok ? json_dumps(root, JSON_COMPACT) : NULL;
  json_decref(root);
  return text;
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
