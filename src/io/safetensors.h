/* The safetensors format: 8 bytes with the header's length (little endian), a JSON header,
 * data. Read by mapping, written atomically. A file is taken for hostile: everything that
 * its header says is checked before anything is mapped.
 *
 * The format: https://huggingface.co/docs/safetensors, with its README's rules (no holes,
 * no overlaps, no duplicate keys, metadata of strings only). */
#ifndef EA_IO_SAFETENSORS_H
#define EA_IO_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "extattn.h"

/* The format's whole-byte types. */
typedef enum ea_st_dtype {
  EA_ST_BOOL,
  EA_ST_U8,
  EA_ST_I8,
  EA_ST_F8_E4M3,
  EA_ST_F8_E5M2,
  EA_ST_I16,
  EA_ST_U16,
  EA_ST_F16,
  EA_ST_BF16,
  EA_ST_I32,
  EA_ST_U32,
  EA_ST_F32,
  EA_ST_I64,
  EA_ST_U64,
  EA_ST_F64,
  EA_ST_NUM_DTYPES
} ea_st_dtype;

/* "BF16": the name that the header uses. */
const char *ea_st_dtype_name(ea_st_dtype dtype);
size_t ea_st_dtype_size(ea_st_dtype dtype);

#define EA_ST_MAX_RANK 8

/* The header of a file that the format's own implementation would still read. */
#define EA_ST_MAX_HEADER_BYTES 100000000

typedef struct ea_st_tensor {
  const char *name;
  ea_st_dtype dtype;
  int32_t rank;
  int64_t shape[EA_ST_MAX_RANK];
  uint64_t offset;  /* from the start of the data */
  uint64_t bytes;   /* product of shape and element size */
  const void *data; /* in the mapping, read-only; aligned only as the file happens to be */
} ea_st_tensor;

typedef struct ea_st_entry {
  const char *key;
  const char *value;
} ea_st_entry;

typedef struct ea_st_file {
  ea_st_tensor *tensors; /* by offset */
  size_t num_tensors;
  ea_st_entry *metadata;
  size_t num_metadata;
  void *map;
  size_t map_bytes;
  void *json; /* owns the strings */
} ea_st_file;

/*
 * Maps a file. A header of more than max_header_bytes is refused (parsing takes up to some
 * fifty times its length in memory, so a caller that knows better passes less than
 * EA_ST_MAX_HEADER_BYTES). On failure file is empty; EA_ERR_INVALID says what is wrong.
 *
 * The file must not shrink while it is mapped: an access past its new end is SIGBUS. What
 * was checked cannot change under the checks, though: the header is read into memory once.
 */
ea_status ea_st_open(const char *path, size_t max_header_bytes, ea_st_file *file);

/* The header alone, for data_bytes of data; tensors' data stays NULL. */
ea_status ea_st_parse_header(const char *header, size_t header_bytes, uint64_t data_bytes, ea_st_file *file);

/* Fine on an empty file. */
void ea_st_close(ea_st_file *file);

/* A tensor to write: like a view, any strides (in bytes), so that nothing is packed in memory first. */
typedef struct ea_st_source {
  const char *name;
  ea_st_dtype dtype;
  int32_t rank;
  int64_t shape[EA_ST_MAX_RANK];
  int64_t stride_bytes[EA_ST_MAX_RANK];
  const void *data;
} ea_st_source;

/* Strides of a packed tensor. */
void ea_st_pack(ea_st_source *source);

/*
 * Writes a file beside path and renames it when it is safely on disk: path is then
 * complete, or what it was before. Nothing else is left behind when that fails, also when
 * a signal ends the process half-way. Tensors are laid out by falling element size, so that
 * each is aligned. EA_ERR_DEVICE with the operating system's reason.
 */
ea_status ea_st_write(const char *path, const ea_st_source *sources, size_t num_sources, const ea_st_entry *metadata,
                      size_t num_metadata);

/* Text from a file, made fit for one line of a terminal: at most 48 characters, others than printable ASCII as '?'. */
typedef struct ea_st_text {
  char s[52];
} ea_st_text;
ea_st_text ea_st_printable(const char *text);

/* "[4, 2, 64]" */
typedef struct ea_st_shape_text {
  char s[EA_ST_MAX_RANK * 22 + 4];
} ea_st_shape_text;
ea_st_shape_text ea_st_shape_of(const ea_st_tensor *tensor);

#endif
