/* The safetensors reader and writer by themselves: what is written can be read, views are
 * packed, and what the format leaves open is accepted. What has to be refused is in hostile.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "support.h"

static const ea_st_tensor *tensor_of(const ea_st_file *file, const char *name) {
  for (size_t i = 0; i < file->num_tensors; ++i) {
    if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
  }
  fail_msg("no tensor %s", name);
  return NULL;
}

static ea_st_source packed(const char *name, ea_st_dtype dtype, int32_t rank, const int64_t *shape, const void *data) {
  ea_st_source source = {.name = name, .dtype = dtype, .rank = rank, .data = data};
  memcpy(source.shape, shape, (size_t)rank * sizeof *shape);
  ea_st_pack(&source);
  return source;
}

static void open_ok(const char *path, ea_st_file *file) {
  if (ea_st_open(path, EA_ST_MAX_HEADER_BYTES, file)) fail_msg("%s: %s", path, ea_last_error());
}

static void open_refused(const char *path, size_t max_header_bytes, const char *message) {
  ea_st_file file;
  assert_int_equal(ea_st_open(path, max_header_bytes, &file), EA_ERR_INVALID);
  if (!strstr(ea_last_error(), message)) fail_msg("found '%s', wanted '%s'", ea_last_error(), message);
  assert_null(file.tensors);
  assert_null(file.map);
}

static void every_type_comes_back(void **state) {
  (void)state;
  unsigned char data[6 * 8];
  for (size_t i = 0; i < sizeof data; ++i) data[i] = (unsigned char)(7 * i + 1);
  ea_st_source sources[EA_ST_NUM_DTYPES];
  for (int i = 0; i < EA_ST_NUM_DTYPES; ++i) {
    const char *name = ea_st_dtype_name((ea_st_dtype)i);
    sources[i] = packed(name, (ea_st_dtype)i, 2, (int64_t[]){2, 3}, data);
  }
  const ea_st_entry metadata[] = {{"one", "1"}, {"quote", "\"\\\n"}, {"letters", "\xc3\xa4"}};
  assert_int_equal(ea_st_write("f", sources, EA_ST_NUM_DTYPES, metadata, 3), EA_OK);

  ea_st_file file;
  open_ok("f", &file);
  assert_int_equal(file.num_tensors, EA_ST_NUM_DTYPES);
  for (int i = 0; i < EA_ST_NUM_DTYPES; ++i) {
    const ea_st_tensor *tensor = tensor_of(&file, ea_st_dtype_name((ea_st_dtype)i));
    const size_t size = ea_st_dtype_size((ea_st_dtype)i);
    assert_int_equal(tensor->dtype, i);
    assert_int_equal(tensor->rank, 2);
    assert_int_equal(tensor->shape[0], 2);
    assert_int_equal(tensor->shape[1], 3);
    assert_int_equal(tensor->bytes, 6 * size);
    assert_int_equal((uintptr_t)tensor->data % size, 0); /* falling sizes keep all aligned */
    assert_memory_equal(tensor->data, data, 6 * size);
  }
  assert_int_equal((uintptr_t)file.tensors[0].data % 64, 0);
  assert_int_equal(file.num_metadata, 3);
  for (size_t i = 0; i < 3; ++i) {
    assert_string_equal(file.metadata[i].key, metadata[i].key);
    assert_string_equal(file.metadata[i].value, metadata[i].value);
  }
  ea_st_close(&file);
  assert_int_equal(count_files(), 1);
  remove("f");
}

/* A view with gaps, in another order of dimensions, beginning inside of its buffer. */
static void views_are_packed(void **state) {
  (void)state;
  int32_t buffer[64];
  for (int i = 0; i < 64; ++i) buffer[i] = i;
  ea_st_source view = {.name = "view", .dtype = EA_ST_I32, .rank = 3, .shape = {2, 3, 2}, .data = buffer + 5};
  const int64_t strides[] = {4, 16, 1};
  for (int i = 0; i < 3; ++i) view.stride_bytes[i] = strides[i] * 4;
  assert_int_equal(ea_st_write("f", &view, 1, NULL, 0), EA_OK);

  ea_st_file file;
  open_ok("f", &file);
  const int32_t *data = file.tensors[0].data;
  for (int a = 0; a < 2; ++a) {
    for (int b = 0; b < 3; ++b) {
      for (int c = 0; c < 2; ++c) assert_int_equal(*data++, 5 + 4 * a + 16 * b + c);
    }
  }
  ea_st_close(&file);
  remove("f");
}

static void empty_and_scalar_tensors(void **state) {
  (void)state;
  const double one = 1.0;
  const ea_st_source sources[] = {
      packed("none", EA_ST_F32, 3, (int64_t[]){0, 4, 5}, NULL),
      packed("scalar", EA_ST_F64, 0, (int64_t[]){0}, &one),
      packed("empty", EA_ST_U8, 1, (int64_t[]){0}, NULL),
  };
  assert_int_equal(ea_st_write("f", sources, 3, NULL, 0), EA_OK);
  ea_st_file file;
  open_ok("f", &file);
  assert_int_equal(file.num_tensors, 3);
  assert_int_equal(tensor_of(&file, "none")->bytes, 0);
  assert_non_null(tensor_of(&file, "none")->data);
  assert_int_equal(tensor_of(&file, "scalar")->rank, 0);
  assert_memory_equal(tensor_of(&file, "scalar")->data, &one, 8);
  ea_st_close(&file);
  remove("f");
}

static void nothing_at_all(void **state) {
  (void)state;
  assert_int_equal(ea_st_write("f", NULL, 0, NULL, 0), EA_OK);
  ea_st_file file;
  open_ok("f", &file);
  assert_int_equal(file.num_tensors, 0);
  assert_int_equal(file.num_metadata, 0);
  ea_st_close(&file);
  ea_st_close(&file); /* and an empty one */
  remove("f");
}

/* Tensors in any order, spaces after the object and inside of it, an empty tensor between two. */
static void other_writers_files(void **state) {
  (void)state;
  write_raw("f",
            "{ \"b\" : {\"shape\":[3], \"data_offsets\":[2,5], \"dtype\":\"U8\"},\n"
            "\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[2,2]},"
            "\"__metadata__\":{},"
            "\"a\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}   \n ",
            5);
  ea_st_file file;
  open_ok("f", &file);
  assert_int_equal(file.num_tensors, 3);
  assert_string_equal(file.tensors[0].name, "a");
  assert_string_equal(file.tensors[1].name, "e");
  assert_string_equal(file.tensors[2].name, "b");
  assert_ptr_equal(file.tensors[2].data, (const char *)file.tensors[0].data + 2);
  ea_st_close(&file);
  remove("f");
}

static void header_limit_is_exact(void **state) {
  (void)state;
  write_raw("f", "{}   ", 0);
  ea_st_file file;
  assert_int_equal(ea_st_open("f", 5, &file), EA_OK);
  ea_st_close(&file);
  open_refused("f", 4, "header: found a length of 5 bytes, allowed up to 4 (the limit)");
  remove("f");
}

/* Sizes near 2^63 are counted right; nothing is allocated for them. */
static void huge_sizes(void **state) {
  (void)state;
  static const char header[] = "{\"a\":{\"dtype\":\"I64\",\"shape\":[1152921504606846975],"
                               "\"data_offsets\":[0,9223372036854775800]}}";
  ea_st_file file;
  assert_int_equal(ea_st_parse_header(header, sizeof header - 1, UINT64_C(9223372036854775800), &file), EA_OK);
  assert_int_equal(file.tensors[0].bytes, UINT64_C(9223372036854775800));
  ea_st_close(&file);
  assert_int_equal(ea_st_parse_header(header, sizeof header - 1, UINT64_C(9223372036854775799), &file), EA_ERR_INVALID);
}

static void no_regular_file(void **state) {
  (void)state;
  open_refused("missing", EA_ST_MAX_HEADER_BYTES, "missing: cannot read: No such file or directory");
  open_refused(".", EA_ST_MAX_HEADER_BYTES, ".: found a folder, allowed a regular file");
  open_refused("/dev/zero", EA_ST_MAX_HEADER_BYTES, "/dev/zero: found a device or pipe, allowed a regular file");
  assert_int_equal(mkfifo("pipe", 0600), 0);
  open_refused("pipe", EA_ST_MAX_HEADER_BYTES, "pipe: found a device or pipe, allowed a regular file");
  remove("pipe");
}

static void long_names_are_cut(void **state) {
  (void)state;
  char name[200];
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  const ea_st_text cut = ea_st_printable(name);
  assert_int_equal(strlen(cut.s), 51);
  assert_string_equal(cut.s + 48, "...");
  name[48] = '\0';
  assert_string_equal(ea_st_printable(name).s, name);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_type_comes_back),
      cmocka_unit_test(views_are_packed),
      cmocka_unit_test(empty_and_scalar_tensors),
      cmocka_unit_test(nothing_at_all),
      cmocka_unit_test(other_writers_files),
      cmocka_unit_test(header_limit_is_exact),
      cmocka_unit_test(huge_sizes),
      cmocka_unit_test(no_regular_file),
      cmocka_unit_test(long_names_are_cut),
  };
  return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
