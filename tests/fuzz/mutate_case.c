/* How libFuzzer changes a case file: header and data each for themselves, so that the header's
 * length stays right, and mostly with offsets laid out anew, so that a changed shape or type
 * gets past the format's own checks to those of the case. */
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX_BYTES 8
#define MAX_TENSOR_BYTES 4096

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

typedef struct bytes {
  uint8_t *data;
  size_t size;
} bytes;

static const struct {
  const char *name;
  size_t size;
} dtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F16", 2},
    {"BF16", 2}, {"F32", 4}, {"I32", 4},     {"I64", 8},     {"F64", 8},
};
enum { NUM_DTYPES = sizeof dtypes / sizeof dtypes[0] };

static unsigned next(unsigned *seed) {
  *seed = *seed * 1664525U + 1013904223U;
  return *seed >> 8;
}

/* Header and data, wherever the prefix says the border is. */
static void split(const uint8_t *data, size_t size, bytes *header, bytes *body) {
  uint64_t length = 0;
  for (int i = PREFIX_BYTES - 1; i >= 0; --i) length = length << 8 | data[i];
  const size_t rest = size - PREFIX_BYTES;
  header->size = length < rest ? (size_t)length : rest;
  body->size = rest - header->size;
  header->data = malloc(header->size + 1);
  body->data = malloc(body->size + 1);
  memcpy(header->data, data + PREFIX_BYTES, header->size);
  memcpy(body->data, data + PREFIX_BYTES + header->size, body->size);
}

static size_t join(uint8_t *data, size_t max_size, const bytes *header, const bytes *body) {
  const size_t room = max_size - PREFIX_BYTES;
  const size_t header_size = header->size < room ? header->size : room;
  const size_t body_size = body->size < room - header_size ? body->size : room - header_size;
  for (int i = 0; i < PREFIX_BYTES; ++i) data[i] = (uint8_t)((uint64_t)header_size >> (8 * i));
  memcpy(data + PREFIX_BYTES, header->data, header_size);
  memcpy(data + PREFIX_BYTES + header_size, body->data, body_size);
  return PREFIX_BYTES + header_size + body_size;
}

static void mutate(bytes *part, size_t max_size) {
  const size_t room = part->size + 64 < max_size ? part->size + 64 : max_size;
  if (room < part->size) return;
  uint8_t *larger = realloc(part->data, room + 1);
  if (!larger) return;
  part->data = larger;
  part->size = LLVMFuzzerMutate(part->data, part->size, room);
}

/* ------------------------------------------------------------------------------------
 * With an eye on the JSON
 * ---------------------------------------------------------------------------------- */

static bool is_tensor(const char *name, const json_t *value) {
  return strcmp(name, "__metadata__") != 0 && json_is_object(value);
}

/* One tensor's type, a size, or its number of dimensions; or one tensor less. */
static void change_tensor(json_t *root, unsigned *seed) {
  const size_t n = json_object_size(root);
  if (n == 0) return;
  size_t which = next(seed) % n;
  const char *name;
  json_t *value;
  void *rest;
  json_object_foreach_safe(root, rest, name, value) {
    if (which-- > 0 || !is_tensor(name, value)) continue;
    json_t *shape = json_object_get(value, "shape");
    const size_t rank = json_array_size(shape), i = rank ? next(seed) % rank : 0;
    const json_int_t size = json_integer_value(json_array_get(shape, i));
    const uint64_t bits = (uint64_t)size; /* what is read may be the greatest there is: sums and products wrap round */
    const json_int_t sizes[] = {
        0, 1, 2, 3, (json_int_t)(bits + 1), (json_int_t)(bits - 1), (json_int_t)(bits * 2), size / 2};
    switch (next(seed) % 8) {
    case 0:
      json_object_set_new(value, "dtype", json_string(dtypes[next(seed) % NUM_DTYPES].name));
      break;
    case 1:
      json_array_append_new(shape, json_integer(1));
      break;
    case 2:
      json_array_remove(shape, i);
      break;
    case 3:
      json_object_del(root, name);
      break;
    default:
      json_array_set_new(shape, i, json_integer(sizes[next(seed) % 8]));
      break;
    }
    return;
  }
}

/* Bytes of a tensor; 0 where it is none that could be. */
static size_t tensor_bytes(json_t *tensor) {
  const char *dtype = json_string_value(json_object_get(tensor, "dtype"));
  json_t *shape = json_object_get(tensor, "shape"), *size;
  size_t n = 0, i;
  for (int d = 0; d < NUM_DTYPES && dtype; ++d) {
    if (strcmp(dtype, dtypes[d].name) == 0) n = dtypes[d].size;
  }
  json_array_foreach(shape, i, size) {
    const json_int_t factor = json_integer_value(size);
    if (factor < 0 || (factor > 0 && n > MAX_TENSOR_BYTES / (size_t)factor)) return 0;
    n *= (size_t)factor;
  }
  return n;
}

/* Gives every tensor the place and the number of bytes that its shape asks for; what it had
 * there before comes along. */
static void lay_out(json_t *root, bytes *body) {
  const char *name;
  json_t *value;
  uint8_t *data = calloc(json_object_size(root) + 1, MAX_TENSOR_BYTES);
  size_t end = 0;
  json_object_foreach(root, name, value) {
    if (!is_tensor(name, value)) continue;
    const size_t n = tensor_bytes(value);
    const json_int_t old = json_integer_value(json_array_get(json_object_get(value, "data_offsets"), 0));
    const size_t from = old < 0 || (size_t)old > body->size ? body->size : (size_t)old;
    memcpy(data + end, body->data + from, n < body->size - from ? n : body->size - from);
    json_object_set_new(value, "data_offsets", json_pack("[I, I]", (json_int_t)end, (json_int_t)(end + n)));
    end += n;
  }
  free(body->data);
  *body = (bytes){data, end};
}

static void rework(bytes *header, bytes *body, bool change, unsigned *seed) {
  json_t *root = json_loadb((const char *)header->data, header->size, 0, NULL);
  if (json_is_object(root)) {
    if (change) change_tensor(root, seed);
    lay_out(root, body);
    char *text = json_dumps(root, JSON_COMPACT);
    if (text) {
      free(header->data);
      *header = (bytes){(uint8_t *)text, strlen(text)};
    }
  }
  json_decref(root);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
  const unsigned way = next(&seed) % 10;
  if (size < PREFIX_BYTES || max_size < 2 * PREFIX_BYTES || way == 0) return LLVMFuzzerMutate(data, size, max_size);
  bytes header, body;
  split(data, size, &header, &body);
  const size_t room = max_size - PREFIX_BYTES;
  if (way < 3) {
    mutate(&header, room);
    if (way == 1) rework(&header, &body, false, &seed);
  } else if (way < 6) {
    mutate(&body, room);
  } else {
    rework(&header, &body, true, &seed);
  }
  size = join(data, max_size, &header, &body);
  free(header.data);
  free(body.data);
  return size;
}
