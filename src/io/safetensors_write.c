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

/* Every offset is then a multiple of the element size. Stable: equal ones keep the caller's order. */
static void sort_by_falling_size(const ea_st_source **order, const ea_st_source *sources, size_t n) {
  size_t filled = 0;
  for (size_t size = 8; size > 0; size /= 2) {
    for (size_t i = 0; i < n; ++i) {
      if (ea_st_dtype_size(sources[i].dtype) == size) order[filled++] = &sources[i];
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
static char *header_text(const ea_st_source *const *order, size_t num_sources, const ea_st_entry *metadata,
                         size_t num_metadata) {
  json_t *root = json_object();
  bool ok = num_metadata == 0 || json_object_set_new(root, "__metadata__", metadata_json(metadata, num_metadata)) == 0;
  int64_t begin = 0;
  for (size_t i = 0; i < num_sources && ok; ++i) {
    ok = json_object_set_new(root, order[i]->name, tensor_json(order[i], begin)) == 0;
    begin += bytes_of(order[i]);
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

/* The elements under one index of the dimensions before dim. */
static void write_elements(ea_new_file *file, const ea_st_source *source, int32_t dim, const char *data) {
  if (is_packed(source, dim)) {
    size_t bytes = ea_st_dtype_size(source->dtype);
    for (int32_t i = dim; i < source->rank; ++i) bytes *= (size_t)source->shape[i];
    ea_new_file_write(file, data, bytes);
    return;
  }
  for (int64_t i = 0; i < source->shape[dim]; ++i) {
    write_elements(file, source, dim + 1, data + i * source->stride_bytes[dim]);
  }
}

ea_status ea_st_write(const char *path, const ea_st_source *sources, size_t num_sources, const ea_st_entry *metadata,
                      size_t num_metadata) {
  const ea_st_source **order = malloc((num_sources + 1) * sizeof *order);
  char *text = NULL;
  if (order) {
    sort_by_falling_size(order, sources, num_sources);
    text = header_text(order, num_sources, metadata, num_metadata);
  }
  ea_new_file *file = NULL;
  ea_status status = text ? ea_new_file_open(path, &file) : ea_fail(EA_ERR_OUT_OF_MEMORY, "%s: out of memory", path);
  if (!status) {
    write_header(file, text);
    for (size_t i = 0; i < num_sources; ++i) write_elements(file, order[i], 0, order[i]->data);
    status = ea_new_file_commit(file);
  }
  free(text);
  free(order);
  return status;
}
