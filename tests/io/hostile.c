/* Case files that have to be refused: bad headers, tensors that do not go together, bad
 * options, and values that only the library looks at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support.h"

/* ------------------------------------------------------------------------------------
 * Headers
 * ---------------------------------------------------------------------------------- */

static void empty_file(const char *path) {
  write_bytes(path, "", 0);
}
static void seven_bytes(const char *path) {
  write_bytes(path, "\x02\0\0\0\0\0\0", 7);
}
static void length_past_the_end(const char *path) {
  write_bytes(path, "\x03\0\0\0\0\0\0\0{}", 10);
}
static void length_of_2_to_63(const char *path) {
  write_bytes(path, "\0\0\0\0\0\0\0\x80{}", 10);
}
static void length_of_all_ones(const char *path) {
  write_bytes(path, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
}
static void no_header(const char *path) {
  write_raw(path, "", 0);
}
static void leading_space(const char *path) {
  write_raw(path, " {}", 0);
}
static void an_array(const char *path) {
  write_raw(path, "[]", 0);
}
static void not_closed(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"F16\"", 0);
}
static void garbage_after(const char *path) {
  write_raw(path, "{} {}", 0);
}
static void duplicate_tensor(const char *path) {
  write_raw(path,
            "{\"q\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
            "\"q\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
            0);
}
static void duplicate_field(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
}
static void zero_in_a_name(const char *path) {
  write_raw(path, "{\"q\\u0000\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
}
static void not_utf8(const char *path) {
  write_raw(path, "{\"q\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
}
static void deep(const char *path) {
  const size_t depth = 500000;
  char *header = malloc(depth + 6);
  assert_non_null(header);
  memcpy(header, "{\"q\":", 5);
  memset(header + 5, '[', depth);
  header[depth + 5] = '\0';
  write_raw(path, header, 0);
  free(header);
}
static void long_header(const char *path) {
  const size_t length = (1 << 20) + 1;
  char *header = malloc(length + 1);
  assert_non_null(header);
  memset(header, ' ', length);
  memcpy(header, "{}", 2);
  header[length] = '\0';
  write_raw(path, header, 0);
  free(header);
}
static void tensor_is_a_number(const char *path) {
  write_raw(path, "{\"q\":1}", 0);
}
static void no_dtype(const char *path) {
  write_raw(path, "{\"q\":{\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
}
static void unknown_dtype(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"F8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
}
static void unknown_field(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":0}}", 0);
}
static void no_shape(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0);
}
static void negative_size(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"shape\":[4,-1],\"data_offsets\":[0,0]}}", 0);
}
static void real_size(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1);
}
static void size_of_2_to_64(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,0]}}", 0);
}
static void product_wraps_to_0(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0);
}
static void bytes_wrap(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"I64\",\"shape\":[2305843009213693953],\"data_offsets\":[0,8]}}", 8);
}
static void nine_dimensions(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1);
}
static void one_offset(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0]}}", 0);
}
static void offsets_are_text(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[\"0\",\"0\"]}}", 0);
}
static void end_past_the_file(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", 8);
}
static void end_before_begin(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,0]}}", 8);
}
static void negative_begin(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[-1,8]}}", 8);
}
static void size_is_not_the_shape(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,4]}}", 4);
}
static void overlap(const char *path) {
  write_raw(path,
            "{\"q\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
            "\"k\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
            7);
}
static void same_bytes_twice(const char *path) {
  write_raw(path,
            "{\"q\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
            "\"k\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
            4);
}
static void hole(const char *path) {
  write_raw(path,
            "{\"q\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
            "\"k\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[5,9]}}",
            9);
}
static void bytes_left_over(const char *path) {
  write_raw(path, "{\"q\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 5);
}
static void metadata_is_an_array(const char *path) {
  write_raw(path, "{\"__metadata__\":[]}", 0);
}
static void metadata_is_a_number(const char *path) {
  write_raw(path, "{\"__metadata__\":{\"causal\":true}}", 0);
}
static void terminal_codes(const char *path) {
  write_raw(path, "{\"q\\u001b[2J\\n\xc2\x9b\":1}", 0);
}

/* ------------------------------------------------------------------------------------
 * Tensors and options
 * ---------------------------------------------------------------------------------- */

#define WITHOUT(name)                                                                                                  \
  static void without_##name(const char *path) {                                                                       \
    parts p = valid_parts();                                                                                           \
    drop_part(&p, #name);                                                                                              \
    write_parts(path, &p);                                                                                             \
  }
WITHOUT(q)
WITHOUT(v)
WITHOUT(v_cache)
WITHOUT(kv_indices)
WITHOUT(custom_mask)
WITHOUT(mask_indptr)

static void no_tensors(const char *path) {
  write_raw(path, "{}", 0);
}

static void unknown_tensor(const char *path) {
  parts p = valid_parts();
  part(&p, "sinks")->name = "sink";
  write_parts(path, &p);
}

/* One tensor with another type; the shape stays. */
static void retype(const char *path, const char *name, ea_st_dtype dtype) {
  static const unsigned char zeros[512];
  parts p = valid_parts();
  ea_st_source *source = part(&p, name);
  source->dtype = dtype;
  source->data = zeros;
  ea_st_pack(source);
  write_parts(path, &p);
}

static void q_is_i32(const char *path) {
  retype(path, "q", EA_ST_I32);
}
static void k_is_bf16(const char *path) {
  retype(path, "k", EA_ST_BF16);
}
static void k_cache_is_f32(const char *path) {
  retype(path, "k_cache", EA_ST_F32);
}
static void v_cache_is_8_bits(const char *path) {
  retype(path, "v_cache", EA_ST_F8_E4M3);
}
static void indptr_is_i64(const char *path) {
  retype(path, "kv_indptr", EA_ST_I64);
}
static void indices_are_u32(const char *path) {
  retype(path, "kv_indices", EA_ST_U32);
}
static void mask_is_f32(const char *path) {
  retype(path, "custom_mask", EA_ST_F32);
}
static void sinks_are_bf16(const char *path) {
  retype(path, "sinks", EA_ST_BF16);
}

/* One tensor with another shape, of zeros. */
static void reshape(const char *path, const char *name, int32_t rank, const int64_t *shape) {
  static const unsigned char zeros[8192];
  parts p = valid_parts();
  ea_st_source *source = part(&p, name);
  source->rank = rank;
  memcpy(source->shape, shape, (size_t)rank * sizeof *shape);
  source->data = zeros;
  ea_st_pack(source);
  write_parts(path, &p);
}

static void q_is_flat(const char *path) {
  reshape(path, "q", 2, (int64_t[]){3, 8});
}
static void q_is_too_wide(const char *path) {
  parts p = valid_parts();
  static const unsigned char zeros[8192];
  for (size_t i = 0; i < 4; ++i) {
    ea_st_source *source = &p.tensors[i];
    if (strcmp(source->name, "v") == 0) continue;
    source->shape[2] = 577;
    source->data = zeros;
    ea_st_pack(source);
  }
  write_parts(path, &p);
}
static void no_query_heads(const char *path) {
  reshape(path, "q", 3, (int64_t[]){3, 0, 4});
}
static void k_has_more_tokens(const char *path) {
  reshape(path, "k", 3, (int64_t[]){4, 1, 4});
}
static void k_has_another_dim(const char *path) {
  reshape(path, "k", 3, (int64_t[]){3, 1, 5});
}
static void v_has_more_heads(const char *path) {
  reshape(path, "v", 3, (int64_t[]){3, 2, 2});
}
static void k_cache_is_flat(const char *path) {
  reshape(path, "k_cache", 2, (int64_t[]){6, 4});
}
static void v_cache_has_fewer_slots(const char *path) {
  reshape(path, "v_cache", 3, (int64_t[]){5, 1, 2});
}
static void v_cache_is_paged(const char *path) {
  reshape(path, "v_cache", 4, (int64_t[]){3, 2, 1, 2});
}
static void pages_of_0(const char *path) {
  parts p = valid_parts();
  for (int i = 0; i < 2; ++i) {
    ea_st_source *source = part(&p, i ? "v_cache" : "k_cache");
    source->rank = 4;
    memcpy(source->shape, (int64_t[]){6, 0, 1, i ? 2 : 4}, 4 * sizeof(int64_t));
    ea_st_pack(source);
  }
  write_parts(path, &p);
}
static void indptr_is_empty(const char *path) {
  reshape(path, "qo_indptr", 1, (int64_t[]){0});
}
static void indptr_is_square(const char *path) {
  reshape(path, "qo_indptr", 2, (int64_t[]){3, 1});
}
static void kv_indptr_is_longer(const char *path) {
  reshape(path, "kv_indptr", 1, (int64_t[]){4});
}
static void indices_are_square(const char *path) {
  reshape(path, "kv_indices", 2, (int64_t[]){3, 1});
}
static void mask_is_square(const char *path) {
  reshape(path, "custom_mask", 2, (int64_t[]){11, 1});
}
static void mask_indptr_is_longer(const char *path) {
  reshape(path, "mask_indptr", 1, (int64_t[]){4});
}
static void sinks_of_one_head(const char *path) {
  reshape(path, "sinks", 1, (int64_t[]){1});
}

static void set_option(const char *path, const char *key, const char *value) {
  parts p = valid_parts();
  p.num_options = 0;
  p.options[p.num_options++] = (ea_st_entry){key, value};
  write_parts(path, &p);
}

#define OPTION(function, key, value)                                                                                   \
  static void function(const char *path) {                                                                             \
    set_option(path, key, value);                                                                                      \
  }
OPTION(unknown_option, "scale", "1")
OPTION(format_option, "format", "pt")
OPTION(bool_of_python, "causal", "True")
OPTION(bool_is_a_number, "skip_prefix", "1")
OPTION(scale_is_0, "softmax_scale", "0")
OPTION(scale_is_negative, "softmax_scale", "-0.125")
OPTION(scale_is_nan, "softmax_scale", "nan")
OPTION(scale_is_inf, "softmax_scale", "inf")
OPTION(scale_overflows, "softmax_scale", "1e999")
OPTION(scale_is_empty, "softmax_scale", "")
OPTION(scale_is_hexadecimal, "k_scale", "0x1p-3")
OPTION(scale_and_more, "k_scale", "1.0 ")
OPTION(scale_with_a_comma, "v_scale", "0,5")
OPTION(k_scale_is_0, "k_scale", "0")
OPTION(cap_is_negative, "logit_cap", "-30")
OPTION(window_is_real, "window_left", "128.0")
OPTION(window_is_too_wide, "window_left", "4294967296")
OPTION(window_is_negative, "window_left", "-2")
OPTION(temperature_is_1, "xai_temperature_len", "1")
OPTION(temperature_overflows, "xai_temperature_len", "9223372036854775808")

/* ------------------------------------------------------------------------------------
 * Values
 * ---------------------------------------------------------------------------------- */

static void set_data(const char *path, const char *name, const void *data) {
  parts p = valid_parts();
  part(&p, name)->data = data;
  write_parts(path, &p);
}

static void slot_past_the_pool(const char *path) {
  set_data(path, "kv_indices", (int64_t[]){5, 6, 2});
}
static void slot_is_negative(const char *path) {
  set_data(path, "kv_indices", (int64_t[]){5, -1, 2});
}
static void slot_of_2_to_32(const char *path) {
  set_data(path, "kv_indices", (int64_t[]){5, 4294967296, 2});
}
static void qo_indptr_begins_late(const char *path) {
  set_data(path, "qo_indptr", (int32_t[]){1, 2, 3});
}
static void qo_indptr_ends_early(const char *path) {
  set_data(path, "qo_indptr", (int32_t[]){0, 2, 2});
}
static void qo_indptr_decreases(const char *path) {
  set_data(path, "qo_indptr", (int32_t[]){0, 3, 2});
}
static void kv_indptr_is_overlong(const char *path) {
  set_data(path, "kv_indptr", (int32_t[]){0, 3, 4});
}
static void kv_indptr_decreases(const char *path) {
  set_data(path, "kv_indptr", (int32_t[]){0, 3, INT32_MIN});
}
static void mask_starts_before_0(const char *path) {
  set_data(path, "mask_indptr", (int64_t[]){-1, 10});
}
static void mask_is_too_short(const char *path) {
  set_data(path, "mask_indptr", (int64_t[]){0, 11});
}
static void mask_starts_at_2_to_63(const char *path) {
  set_data(path, "mask_indptr", (int64_t[]){0, INT64_MAX});
}
static void no_sequences_for_tokens(const char *path) {
  static const int32_t zero = 0;
  parts p = valid_parts();
  drop_part(&p, "custom_mask");
  drop_part(&p, "mask_indptr");
  for (int i = 0; i < 2; ++i) {
    ea_st_source *source = part(&p, i ? "kv_indptr" : "qo_indptr");
    source->shape[0] = 1;
    source->data = &zero;
  }
  write_parts(path, &p);
}
static void two_heads_of_keys_for_three(const char *path) {
  static const unsigned char zeros[512];
  parts p = valid_parts();
  part(&p, "q")->shape[1] = 3;
  static const char *const names[] = {"q", "k", "v", "k_cache", "v_cache"};
  for (int i = 0; i < 5; ++i) {
    ea_st_source *source = part(&p, names[i]);
    source->shape[1] = i == 0 ? 3 : 2;
    source->data = zeros;
    ea_st_pack(source);
  }
  drop_part(&p, "sinks");
  write_parts(path, &p);
}

#define READER(function, message)                                                                                      \
  { #function, message, function, false }
#define LIBRARY(function, message)                                                                                     \
  { #function, message, function, true }

const hostile hostiles[] = {
    READER(empty_file, "file: found 0 bytes, allowed at least 8"),
    READER(seven_bytes, "file: found 7 bytes, allowed at least 8"),
    READER(length_past_the_end, "header: found a length of 3 bytes, allowed up to 2 (the rest of the file)"),
    READER(length_of_2_to_63, "header: found a length of 9223372036854775808 bytes, allowed up to 1048576 (the limit)"),
    READER(length_of_all_ones, "header: found a length of 18446744073709551615 bytes, allowed up to 1048576"),
    READER(no_header, "header: found no '{' at its start"),
    READER(leading_space, "header: found no '{' at its start"),
    READER(an_array, "header: found no '{' at its start"),
    READER(not_closed, "header: found bad JSON at byte "),
    READER(garbage_after, "header: found bad JSON at byte "),
    READER(duplicate_tensor, "header: found bad JSON at byte 56 (duplicate object key"),
    READER(duplicate_field, "header: found bad JSON at byte "),
    READER(zero_in_a_name, "header: found bad JSON at byte "),
    READER(not_utf8, "header: found bad JSON at byte "),
    READER(deep, "header: found bad JSON at byte 2053 (maximum parsing depth reached"),
    READER(long_header, "header: found a length of 1048577 bytes, allowed up to 1048576 (the limit)"),
    READER(tensor_is_a_number, "q: found no JSON object, allowed one of dtype, shape, data_offsets"),
    READER(no_dtype, "q: dtype: found no string, allowed a type's name"),
    READER(unknown_dtype, "q: dtype: found 'F8', allowed BOOL, "),
    READER(unknown_field, "q: found the key 'x', allowed dtype, shape, data_offsets"),
    READER(no_shape, "q: shape: found no array"),
    READER(negative_size, "q: shape: found no whole number >= 0 at 1"),
    READER(real_size, "q: shape: found no whole number >= 0 at 0"),
    READER(size_of_2_to_64, "header: found bad JSON at byte "),
    READER(product_wraps_to_0, "q: shape: found [4294967296, 4294967296], allowed less than 2^64 bytes in all"),
    READER(bytes_wrap, "q: shape: found [2305843009213693953], allowed less than 2^64 bytes in all"),
    READER(nine_dimensions, "q: shape: found 9 dimensions, allowed up to 8"),
    READER(one_offset, "q: data_offsets: found no pair of whole numbers"),
    READER(offsets_are_text, "q: data_offsets: found no pair of whole numbers"),
    READER(end_past_the_file, "q: data_offsets: found [0, 9], allowed 0 <= begin <= end <= 8"),
    READER(end_before_begin, "q: data_offsets: found [8, 0], allowed 0 <= begin <= end <= 8"),
    READER(negative_begin, "q: data_offsets: found [-1, 8], allowed 0 <= begin <= end <= 8"),
    READER(size_is_not_the_shape, "q: data_offsets: found 4 bytes, allowed 8 (F16 of shape [2, 2])"),
    READER(overlap, "k: data_offsets: found a begin of 3, allowed 4 (it overlaps the tensor before)"),
    READER(same_bytes_twice, "k: data_offsets: found a begin of 0, allowed 4 (it overlaps the tensor before)"),
    READER(hole, "k: data_offsets: found a begin of 5, allowed 4 (there must be no hole)"),
    READER(bytes_left_over, "file: found 5 bytes of data, allowed 4, where the last tensor ends"),
    READER(metadata_is_an_array, "__metadata__: found no JSON object"),
    READER(metadata_is_a_number, "__metadata__: causal: found no string"),
    READER(terminal_codes, "q?[2J???: found no JSON object"),

    READER(no_tensors, "q: found no tensor of this name, it is required"),
    READER(without_q, "q: found no tensor of this name, it is required"),
    READER(without_v, "v: found no tensor of this name, it is required"),
    READER(without_v_cache, "v_cache: found no tensor of this name, it is required"),
    READER(without_kv_indices, "kv_indices: found no tensor of this name, it is required"),
    READER(without_custom_mask, "custom_mask: found no tensor of this name, it is required with mask_indptr"),
    READER(without_mask_indptr, "mask_indptr: found no tensor of this name, it is required with custom_mask"),
    READER(unknown_tensor, "sink: found a tensor of this name, allowed q, k, v, k_cache, v_cache, qo_indptr, "),
    READER(q_is_i32, "q: found type I32, allowed F16, BF16, F32"),
    READER(k_is_bf16, "k: found type BF16, allowed F16, as q"),
    READER(k_cache_is_f32, "k_cache: found type F32, allowed F8_E4M3, F8_E5M2, F16 (q's type, or 8 bits)"),
    READER(v_cache_is_8_bits, "v_cache: found type F8_E4M3, allowed F16, as k_cache"),
    READER(indptr_is_i64, "kv_indptr: found type I64, allowed I32"),
    READER(indices_are_u32, "kv_indices: found type U32, allowed I32, I64"),
    READER(mask_is_f32, "custom_mask: found type F32, allowed BOOL, U8"),
    READER(sinks_are_bf16, "sinks: found type BF16, allowed F16, F32 (q's type, or F32)"),
    READER(q_is_flat, "q: found shape [3, 8], allowed [T, Hq, D]"),
    READER(q_is_too_wide, "q: found shape [3, 2, 577], allowed a head dimension (dimension 2) from 1 to 576"),
    READER(no_query_heads, "q: found shape [3, 0, 4], allowed query heads (dimension 1) from 1 to 2147483647"),
    READER(k_has_more_tokens, "k: found shape [4, 1, 4], allowed [T = 3, Hkv, D = 4]"),
    READER(k_has_another_dim, "k: found shape [3, 1, 5], allowed [T = 3, Hkv, D = 4]"),
    READER(v_has_more_heads, "v: found shape [3, 2, 2], allowed [T = 3, Hkv = 1, Dv]"),
    READER(k_cache_is_flat, "k_cache: found shape [6, 4], allowed [S, Hkv = 1, D = 4]"),
    READER(v_cache_has_fewer_slots, "v_cache: found shape [5, 1, 2], allowed [S = 6, Hkv = 1, Dv = 2]"),
    READER(v_cache_is_paged, "v_cache: found shape [3, 2, 1, 2], allowed [S = 6, Hkv = 1, Dv = 2]"),
    READER(pages_of_0, "k_cache: found shape [6, 0, 1, 4], allowed a page size (dimension 1) from 1 to 2147483647"),
    READER(indptr_is_empty, "qo_indptr: found shape [0], allowed [B+1] with B >= 0"),
    READER(indptr_is_square, "qo_indptr: found shape [3, 1], allowed [B+1]"),
    READER(kv_indptr_is_longer, "kv_indptr: found shape [4], allowed [B+1 = 3]"),
    READER(indices_are_square, "kv_indices: found shape [3, 1], allowed [sum of prefixes]"),
    READER(mask_is_square, "custom_mask: found shape [11, 1], allowed [bytes]"),
    READER(mask_indptr_is_longer, "mask_indptr: found shape [4], allowed [B = 2] or [B+1 = 3]"),
    READER(sinks_of_one_head, "sinks: found shape [1], allowed [Hq = 2]"),

    READER(unknown_option, "scale: found an option of this name, allowed softmax_scale, causal, window_left, "),
    READER(format_option, "format: found an option of this name, allowed softmax_scale, "),
    READER(bool_of_python, "causal: found 'True', allowed true or false"),
    READER(bool_is_a_number, "skip_prefix: found '1', allowed true or false"),
    READER(scale_is_0, "softmax_scale: found '0', allowed a number > 0"),
    READER(scale_is_negative, "softmax_scale: found '-0.125', allowed a number > 0"),
    READER(scale_is_nan, "softmax_scale: found 'nan', allowed a finite decimal number"),
    READER(scale_is_inf, "softmax_scale: found 'inf', allowed a finite decimal number"),
    READER(scale_overflows, "softmax_scale: found '1e999', allowed a finite decimal number"),
    READER(scale_is_empty, "softmax_scale: found '', allowed a finite decimal number"),
    READER(scale_is_hexadecimal, "k_scale: found '0x1p-3', allowed a finite decimal number"),
    READER(scale_and_more, "k_scale: found '1.0 ', allowed a finite decimal number"),
    READER(scale_with_a_comma, "v_scale: found '0,5', allowed a finite decimal number"),
    READER(window_is_real, "window_left: found '128.0', allowed a whole number of 32 bits"),
    READER(window_is_too_wide, "window_left: found '4294967296', allowed a whole number of 32 bits"),
    READER(temperature_overflows, "xai_temperature_len: found '9223372036854775808', allowed a whole number of 64"),
    LIBRARY(k_scale_is_0, "k_scale: found 0"),
    LIBRARY(cap_is_negative, "logit_cap: found -30"),
    LIBRARY(window_is_negative, "window_left: found -2"),
    LIBRARY(temperature_is_1, "xai_temperature_len: found 1"),

    LIBRARY(slot_past_the_pool, "kv_indices[1]: found 6, allowed 0 to 5"),
    LIBRARY(slot_is_negative, "kv_indices[1]: found -1, allowed 0 to 5"),
    LIBRARY(slot_of_2_to_32, "kv_indices[1]: found 4294967296, allowed 0 to 5"),
    LIBRARY(qo_indptr_begins_late, "qo_indptr[0]: found 1, allowed 0"),
    LIBRARY(qo_indptr_ends_early, "qo_indptr[2]: found 2, allowed 3"),
    LIBRARY(qo_indptr_decreases, "qo_indptr[2]: found 2, allowed 3"),
    LIBRARY(kv_indptr_is_overlong, "kv_indptr[2]: found 4, allowed 3"),
    LIBRARY(kv_indptr_decreases, "kv_indptr[2]: found -2147483648, allowed 3"),
    LIBRARY(mask_starts_before_0, "mask_indptr[0]: found -1, allowed 0 to 11"),
    LIBRARY(mask_is_too_short, "custom_mask_bytes: found 11, allowed 11 + 1 rows * 1 bytes"),
    LIBRARY(mask_starts_at_2_to_63, "mask_indptr[1]: found 9223372036854775807, allowed 0 to 11"),
    LIBRARY(no_sequences_for_tokens, "num_tokens: found 3"),
    LIBRARY(two_heads_of_keys_for_three, "num_q_heads: found 3"),
};

const size_t num_hostiles = sizeof hostiles / sizeof hostiles[0];
