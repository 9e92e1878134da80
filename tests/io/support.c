/* A folder of their own for the tests of src/io, and a small valid case. */
#include "support.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

int enter_folder(void **state) {
  char name[] = "/tmp/extattn-test-XXXXXX";
  if (!mkdtemp(name) || chdir(name) != 0) return -1;
  *state = strdup(name);
  return *state ? 0 : -1;
}

/* Calls remove() on every entry of the working folder, or only counts them. */
static int each_file(bool delete_them) {
  DIR *folder = opendir(".");
  assert_non_null(folder);
  int count = 0;
  for (const struct dirent *entry; (entry = readdir(folder));) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    ++count;
    if (delete_them) assert_int_equal(remove(entry->d_name), 0);
  }
  closedir(folder);
  return count;
}

int leave_folder(void **state) {
  each_file(true);
  const int failed = chdir("/") | rmdir(*state);
  free(*state);
  return failed;
}

int count_files(void) {
  return each_file(false);
}

void remove_files(void) {
  each_file(true);
}

void check_same_files(const char *a, const char *b) {
  size_t n, m;
  unsigned char *bytes_a = read_bytes(a, &n), *bytes_b = read_bytes(b, &m);
  assert_int_equal(n, m);
  assert_memory_equal(bytes_a, bytes_b, n);
  free(bytes_a);
  free(bytes_b);
}

void write_bytes(const char *path, const void *bytes, size_t n) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  assert_int_equal(fclose(f), 0);
}

unsigned char *read_bytes(const char *path, size_t *n) {
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  assert_int_equal(fseek(f, 0, SEEK_END), 0);
  *n = (size_t)ftell(f);
  rewind(f);
  unsigned char *bytes = malloc(*n + 1);
  assert_non_null(bytes);
  assert_int_equal(fread(bytes, 1, *n, f), *n);
  fclose(f);
  return bytes;
}

void write_raw(const char *path, const char *header, size_t data_bytes) {
  const uint64_t length = strlen(header);
  unsigned char prefix[8];
  for (int i = 0; i < 8; ++i) prefix[i] = (unsigned char)(length >> (8 * i));
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(prefix, 1, sizeof prefix, f), sizeof prefix);
  assert_true(fputs(header, f) >= 0);
  for (size_t i = 0; i < data_bytes; ++i) assert_int_equal(fputc(0, f), 0);
  assert_int_equal(fclose(f), 0);
}

static const uint16_t numbers[64] = {0x3c00, 0xbc00, 0x3800,
                                     0x4000, 0x3400, 0xb800}; /* f16: 1, -1, 0.5, 2, 0.25, -0.5, 0 */
static const float sinks[] = {0.5F, -1.0F};
static const int32_t qo_indptr[] = {0, 2, 3};
static const int32_t kv_indptr[] = {0, 3, 3};
static const int64_t kv_indices[] = {5, 0, 2};
static const uint8_t custom_mask[] = {1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1};
static const int64_t mask_indptr[] = {0, 10};

static void add(parts *p, const char *name, ea_st_dtype dtype, int32_t rank, const int64_t *shape, const void *data) {
  ea_st_source *source = &p->tensors[p->num_tensors++];
  *source = (ea_st_source){.name = name, .dtype = dtype, .rank = rank, .data = data};
  memcpy(source->shape, shape, (size_t)rank * sizeof *shape);
  ea_st_pack(source);
}

parts valid_parts(void) {
  parts p = {.num_tensors = 0};
  add(&p, "q", EA_ST_F16, 3, (int64_t[]){3, 2, 4}, numbers);
  add(&p, "k", EA_ST_F16, 3, (int64_t[]){3, 1, 4}, numbers);
  add(&p, "v", EA_ST_F16, 3, (int64_t[]){3, 1, 2}, numbers);
  add(&p, "k_cache", EA_ST_F16, 3, (int64_t[]){6, 1, 4}, numbers);
  add(&p, "v_cache", EA_ST_F16, 3, (int64_t[]){6, 1, 2}, numbers);
  add(&p, "qo_indptr", EA_ST_I32, 1, (int64_t[]){3}, qo_indptr);
  add(&p, "kv_indptr", EA_ST_I32, 1, (int64_t[]){3}, kv_indptr);
  add(&p, "kv_indices", EA_ST_I64, 1, (int64_t[]){3}, kv_indices);
  add(&p, "custom_mask", EA_ST_BOOL, 1, (int64_t[]){11}, custom_mask);
  add(&p, "mask_indptr", EA_ST_I64, 1, (int64_t[]){2}, mask_indptr);
  add(&p, "sinks", EA_ST_F32, 1, (int64_t[]){2}, sinks);
  p.options[p.num_options++] = (ea_st_entry){"logit_cap", "30.0"};
  p.options[p.num_options++] = (ea_st_entry){"causal", "true"};
  return p;
}

ea_st_source *part(parts *p, const char *name) {
  for (size_t i = 0; i < p->num_tensors; ++i) {
    if (strcmp(p->tensors[i].name, name) == 0) return &p->tensors[i];
  }
  fail_msg("no part %s", name);
  return NULL;
}

void drop_part(parts *p, const char *name) {
  ea_st_source *dropped = part(p, name);
  *dropped = p->tensors[--p->num_tensors];
}

void write_parts(const char *path, const parts *p) {
  assert_int_equal(ea_st_write(path, p->tensors, p->num_tensors, p->options, p->num_options), EA_OK);
}
