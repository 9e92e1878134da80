/* Fuzz target: the header of a safetensors file. An input is 8 bytes with the length of the
 * data that the header is for, and the header. What is accepted must describe exactly this
 * data. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

static void check(int holds) {
  if (!holds) abort();
}

static void check_tensor(const ea_st_tensor *tensor, uint64_t *covered) {
  check(tensor->dtype < EA_ST_NUM_DTYPES);
  check(tensor->rank >= 0 && tensor->rank <= EA_ST_MAX_RANK);
  check(tensor->offset == *covered);
  /* The size by division, so that an overflow cannot make both sides wrong. */
  uint64_t left = tensor->bytes;
  int empty = 0;
  for (int32_t i = 0; i < tensor->rank; ++i) {
    check(tensor->shape[i] >= 0);
    empty |= tensor->shape[i] == 0;
  }
  for (int32_t i = 0; i < tensor->rank && !empty; ++i) {
    check(left % (uint64_t)tensor->shape[i] == 0);
    left /= (uint64_t)tensor->shape[i];
  }
  check(left == (empty ? 0 : ea_st_dtype_size(tensor->dtype)));
  check(*covered + tensor->bytes >= *covered);
  *covered += tensor->bytes;
  check(ea_st_shape_of(tensor).s[0] == '[');
  check(strlen(ea_st_printable(tensor->name).s) < sizeof(ea_st_text));
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
  uint64_t data_bytes;
  if (size < sizeof data_bytes) return 0;
  memcpy(&data_bytes, input, sizeof data_bytes);

  /* Of the exact size, so that a byte too many read shows. */
  const size_t header_bytes = size - sizeof data_bytes;
  char *header = malloc(header_bytes ? header_bytes : 1);
  check(header != NULL);
  memcpy(header, input + sizeof data_bytes, header_bytes);
  ea_st_file file;
  const ea_status status = ea_st_parse_header(header, header_bytes, data_bytes, &file);
  free(header);

  if (status) {
    check(status == EA_ERR_INVALID);
    check(ea_last_error()[0] && !strchr(ea_last_error(), '\n'));
    check(!file.tensors && !file.metadata && !file.json && !file.map);
    return 0;
  }
  uint64_t covered = 0;
  for (size_t i = 0; i < file.num_tensors; ++i) check_tensor(&file.tensors[i], &covered);
  check(covered == data_bytes);
  for (size_t i = 0; i < file.num_metadata; ++i) check(file.metadata[i].key && file.metadata[i].value);
  ea_st_close(&file);
  return 0;
}
