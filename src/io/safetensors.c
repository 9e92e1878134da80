/* Reading safetensors: the header is read into memory and checked in full, then the file
 * is mapped. */
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/error.h"

#define PREFIX_BYTES 8 /* the header's length */
#define METADATA_KEY "__metadata__"

ea_st_text ea_st_printable(const char *text) {
  ea_st_text out;
  const size_t room = sizeof out.s - sizeof "...";
  size_t n = 0;
  for (; text[n] && n < room; ++n) out.s[n] = (char)(text[n] >= ' ' && text[n] < 0x7f ? text[n] : '?');
  snprintf(out.s + n, sizeof out.s - n, "%s", text[n] ? "..." : "");
  return out;
}

ea_st_shape_text ea_st_shape_of(const ea_st_tensor *tensor) {
  ea_st_shape_text out;
  size_t n = (size_t)snprintf(out.s, sizeof out.s, "[");
  for (int32_t i = 0; i < tensor->rank; ++i) {
    n += (size_t)snprintf(out.s + n, sizeof out.s - n, "%s%" PRId64, i ? ", " : "", tensor->shape[i]);
  }
  snprintf(out.s + n, sizeof out.s - n, "]");
  return out;
}

/* ------------------------------------------------------------------------------------
 * The header
 * ---------------------------------------------------------------------------------- */

static ea_status parse_dtype(const char *name, const json_t *json, ea_st_tensor *tensor) {
  if (!json_is_string(json)) return ea_fail(EA_ERR_INVALID, "%s: dtype: found no string, allowed a type's name", name);
  for (int i = 0; i < EA_ST_NUM_DTYPES; ++i) {
    if (strcmp(json_string_value(json), ea_st_dtype_name((ea_st_dtype)i)) != 0) continue;
    tensor->dtype = (ea_st_dtype)i;
    return EA_OK;
  }
  return ea_fail(EA_ERR_INVALID,
                 "%s: dtype: found '%s', allowed BOOL, I8 to I64, U8 to U64, F8_E4M3, F8_E5M2, F16, BF16, F32, F64",
                 name, ea_st_printable(json_string_value(json)).s);
}

/* Also sets bytes: the product of shape and element size. */
static ea_status parse_shape(const char *name, const json_t *json, ea_st_tensor *tensor) {
  if (!json_is_array(json))
    return ea_fail(EA_ERR_INVALID, "%s: shape: found no array, allowed an array of sizes", name);
  const size_t rank = json_array_size(json);
  if (rank > EA_ST_MAX_RANK) {
    return ea_fail(EA_ERR_INVALID, "%s: shape: found %zu dimensions, allowed up to %d", name, rank, EA_ST_MAX_RANK);
  }
  tensor->rank = (int32_t)rank;
  tensor->bytes = ea_st_dtype_size(tensor->dtype);
  bool overflow = false;
  for (size_t i = 0; i < rank; ++i) {
    const json_t *size = json_array_get(json, i);
    if (!json_is_integer(size) || json_integer_value(size) < 0) {
      return ea_fail(EA_ERR_INVALID, "%s: shape: found no whole number >= 0 at %zu, allowed an array of sizes", name,
                     i);
    }
    tensor->shape[i] = json_integer_value(size);
    overflow |= __builtin_mul_overflow(tensor->bytes, (uint64_t)tensor->shape[i], &tensor->bytes);
  }
  if (overflow) {
    return ea_fail(EA_ERR_INVALID, "%s: shape: found %s, allowed less than 2^64 bytes in all", name,
                   ea_st_shape_of(tensor).s);
  }
  return EA_OK;
}

static ea_status parse_offsets(const char *name, const json_t *json, uint64_t data_bytes, ea_st_tensor *tensor) {
  const json_t *begin_json = json_array_get(json, 0), *end_json = json_array_get(json, 1);
  if (json_array_size(json) != 2 || !json_is_integer(begin_json) || !json_is_integer(end_json)) {
    return ea_fail(EA_ERR_INVALID, "%s: data_offsets: found no pair of whole numbers, allowed [begin, end]", name);
  }
  const int64_t begin = json_integer_value(begin_json), end = json_integer_value(end_json);
  if (begin < 0 || begin > end || (uint64_t)end > data_bytes) {
    return ea_fail(EA_ERR_INVALID,
                   "%s: data_offsets: found [%" PRId64 ", %" PRId64 "], allowed 0 <= begin <= end <= %" PRIu64
                   " (bytes of data in the file)",
                   name, begin, end, data_bytes);
  }
  if ((uint64_t)(end - begin) != tensor->bytes) {
    return ea_fail(EA_ERR_INVALID, "%s: data_offsets: found %" PRId64 " bytes, allowed %" PRIu64 " (%s of shape %s)",
                   name, end - begin, tensor->bytes, ea_st_dtype_name(tensor->dtype), ea_st_shape_of(tensor).s);
  }
  tensor->offset = (uint64_t)begin;
  return EA_OK;
}

static ea_status parse_tensor(const char *key, json_t *json, uint64_t data_bytes, ea_st_tensor *tensor) {
  const ea_st_text printable = ea_st_printable(key);
  const char *name = printable.s;
  tensor->name = key;
  if (!json_is_object(json)) {
    return ea_fail(EA_ERR_INVALID, "%s: found no JSON object, allowed one of dtype, shape, data_offsets", name);
  }
  const char *field;
  json_t *value;
  json_object_foreach(json, field, value) {
    if (strcmp(field, "dtype") != 0 && strcmp(field, "shape") != 0 && strcmp(field, "data_offsets") != 0) {
      return ea_fail(EA_ERR_INVALID, "%s: found the key '%s', allowed dtype, shape, data_offsets", name,
                     ea_st_printable(field).s);
    }
  }
  ea_status status = parse_dtype(name, json_object_get(json, "dtype"), tensor);
  if (!status) status = parse_shape(name, json_object_get(json, "shape"), tensor);
  if (!status) status = parse_offsets(name, json_object_get(json, "data_offsets"), data_bytes, tensor);
  return status;
}

static ea_status parse_metadata(json_t *json, ea_st_file *file) {
  if (!json_is_object(json)) {
    return ea_fail(EA_ERR_INVALID, METADATA_KEY ": found no JSON object, allowed an object of strings");
  }
  file->metadata = calloc(json_object_size(json) + 1, sizeof *file->metadata);
  if (!file->metadata) return ea_fail(EA_ERR_OUT_OF_MEMORY, METADATA_KEY ": out of memory");
  const char *key;
  json_t *value;
  json_object_foreach(json, key, value) {
    if (!json_is_string(value)) {
      return ea_fail(EA_ERR_INVALID, METADATA_KEY ": %s: found no string, allowed strings only",
                     ea_st_printable(key).s);
    }
    file->metadata[file->num_metadata++] = (ea_st_entry){key, json_string_value(value)};
  }
  return EA_OK;
}

static int by_offset(const void *a, const void *b) {
  const ea_st_tensor *s = a, *t = b;
  if (s->offset != t->offset) return s->offset < t->offset ? -1 : 1;
  return (s->bytes > t->bytes) - (s->bytes < t->bytes); /* an empty tensor comes before the one it touches */
}

/* The tensors, in order, must cover the data exactly. */
static ea_status check_cover(ea_st_file *file, uint64_t data_bytes) {
  if (file->num_tensors > 0) qsort(file->tensors, file->num_tensors, sizeof *file->tensors, by_offset);
  uint64_t covered = 0;
  for (size_t i = 0; i < file->num_tensors; ++i) {
    const ea_st_tensor *tensor = &file->tensors[i];
    if (tensor->offset != covered) {
      return ea_fail(EA_ERR_INVALID, "%s: data_offsets: found a begin of %" PRIu64 ", allowed %" PRIu64 " (%s)",
                     ea_st_printable(tensor->name).s, tensor->offset, covered,
                     tensor->offset < covered ? "it overlaps the tensor before" : "there must be no hole");
    }
    covered += tensor->bytes;
  }
  if (covered != data_bytes) {
    return ea_fail(EA_ERR_INVALID,
                   "file: found %" PRIu64 " bytes of data, allowed %" PRIu64 ", where the last tensor ends", data_bytes,
                   covered);
  }
  return EA_OK;
}

static ea_status parse_json(const char *header, size_t header_bytes, json_t **root) {
  if (header_bytes == 0 || header[0] != '{') {
    return ea_fail(EA_ERR_INVALID, "header: found no '{' at its start, allowed a JSON object");
  }
  json_error_t error;
  *root = json_loadb(header, header_bytes, JSON_REJECT_DUPLICATES, &error);
  if (*root) return EA_OK;
  return json_error_code(&error) == json_error_out_of_memory
             ? ea_fail(EA_ERR_OUT_OF_MEMORY, "header: out of memory for %zu bytes of JSON", header_bytes)
             : ea_fail(EA_ERR_INVALID, "header: found bad JSON at byte %d (%s), allowed a JSON object", error.position,
                       error.text);
}

static ea_status parse_root(json_t *root, uint64_t data_bytes, ea_st_file *file) {
  file->tensors = calloc(json_object_size(root) + 1, sizeof *file->tensors);
  if (!file->tensors) return ea_fail(EA_ERR_OUT_OF_MEMORY, "header: out of memory");
  const char *key;
  json_t *value;
  json_object_foreach(root, key, value) {
    ea_status status;
    if (strcmp(key, METADATA_KEY) == 0) {
      status = parse_metadata(value, file);
    } else {
      status = parse_tensor(key, value, data_bytes, &file->tensors[file->num_tensors]);
      ++file->num_tensors;
    }
    if (status) return status;
  }
  return check_cover(file, data_bytes);
}

/* Leaves cleaning up to the caller. */
static ea_status parse_header(const char *header, size_t header_bytes, uint64_t data_bytes, ea_st_file *file) {
  json_t *root = NULL;
  const ea_status status = parse_json(header, header_bytes, &root);
  file->json = root;
  return status ? status : parse_root(root, data_bytes, file);
}

ea_status ea_st_parse_header(const char *header, size_t header_bytes, uint64_t data_bytes, ea_st_file *file) {
  *file = (ea_st_file){0};
  const ea_status status = parse_header(header, header_bytes, data_bytes, file);
  if (status) ea_st_close(file);
  return status;
}

/* ------------------------------------------------------------------------------------
 * The file
 * ---------------------------------------------------------------------------------- */

static ea_status open_failed(const char *path) {
  return ea_fail(EA_ERR_INVALID, "%s: cannot read: %s", path, strerror(errno));
}

/* All of bytes at offset, or false with errno. */
static bool read_all(int fd, void *to, size_t bytes, off_t offset) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = pread(fd, (char *)to + done, bytes - done, offset + (off_t)done);
    if (n == 0) errno = EIO; /* it shrank under us */
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += (size_t)n;
  }
  return true;
}

/* The header's length, checked against the file's. */
static ea_status read_length(const char *path, int fd, uint64_t file_bytes, size_t max_bytes, size_t *header_bytes) {
  if (file_bytes < PREFIX_BYTES) {
    return ea_fail(EA_ERR_INVALID, "file: found %" PRIu64 " bytes, allowed at least %d", file_bytes, PREFIX_BYTES);
  }
  unsigned char prefix[PREFIX_BYTES];
  if (!read_all(fd, prefix, sizeof prefix, 0)) return open_failed(path);
  uint64_t length = 0;
  for (int i = PREFIX_BYTES - 1; i >= 0; --i) length = length << 8 | prefix[i];
  const uint64_t rest = file_bytes - PREFIX_BYTES;
  if (length > max_bytes || length > rest) {
    return ea_fail(EA_ERR_INVALID, "header: found a length of %" PRIu64 " bytes, allowed up to %" PRIu64 " (%s)",
                   length, length > max_bytes ? (uint64_t)max_bytes : rest,
                   length > max_bytes ? "the limit" : "the rest of the file");
  }
  *header_bytes = (size_t)length;
  return EA_OK;
}

static ea_status read_header(const char *path, int fd, size_t header_bytes, uint64_t data_bytes, ea_st_file *file) {
  char *header = malloc(header_bytes + 1);
  if (!header) return ea_fail(EA_ERR_OUT_OF_MEMORY, "header: out of memory for %zu bytes", header_bytes);
  const ea_status status = read_all(fd, header, header_bytes, PREFIX_BYTES)
                               ? parse_header(header, header_bytes, data_bytes, file)
                               : open_failed(path);
  free(header);
  return status;
}

static ea_status map_data(const char *path, int fd, size_t header_bytes, uint64_t file_bytes, ea_st_file *file) {
  void *map = mmap(NULL, file_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (map == MAP_FAILED) {
    return ea_fail(errno == ENOMEM ? EA_ERR_OUT_OF_MEMORY : EA_ERR_DEVICE, "%s: cannot map: %s", path, strerror(errno));
  }
  file->map = map;
  file->map_bytes = file_bytes;
  for (size_t i = 0; i < file->num_tensors; ++i) {
    file->tensors[i].data = (const char *)map + PREFIX_BYTES + header_bytes + file->tensors[i].offset;
  }
  return EA_OK;
}

static ea_status open_fd(const char *path, int fd, size_t max_header_bytes, ea_st_file *file) {
  struct stat info;
  if (fstat(fd, &info) != 0) return open_failed(path);
  if (!S_ISREG(info.st_mode)) {
    return ea_fail(EA_ERR_INVALID, "%s: found %s, allowed a regular file", path,
                   S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe");
  }
  const uint64_t file_bytes = (uint64_t)info.st_size;
  size_t header_bytes = 0;
  ea_status status = read_length(path, fd, file_bytes, max_header_bytes, &header_bytes);
  if (!status) status = read_header(path, fd, header_bytes, file_bytes - PREFIX_BYTES - header_bytes, file);
  if (!status) status = map_data(path, fd, header_bytes, file_bytes, file);
  return status;
}

ea_status ea_st_open(const char *path, size_t max_header_bytes, ea_st_file *file) {
  *file = (ea_st_file){0};
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
  if (fd < 0) return open_failed(path);
  const ea_status status = open_fd(path, fd, max_header_bytes, file);
  close(fd);
  if (status) ea_st_close(file);
  return status;
}

void ea_st_close(ea_st_file *file) {
  if (file->map) munmap(file->map, file->map_bytes);
  free(file->tensors);
  free(file->metadata);
  json_decref(file->json);
  *file = (ea_st_file){0};
}
