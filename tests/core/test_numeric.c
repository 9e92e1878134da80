/* common/numeric.h against the formats' definitions: every code of every 8-bit and 16-bit
 * type, every rounding boundary between two neighbours, and the ends of the range. */
#include <float.h>
#include <math.h>

#include "cmocka_all.h"
#include "common/numeric.h"

/* A type by its definition: OCP 8-bit Floating Point Specification, tables 1 and 2; IEEE 754
 * binary16; bfloat16. */
typedef struct type {
  const char *name;
  ea_dtype dtype;
  uint32_t num_codes;
  int mantissa_bits;
  int bias;
  uint32_t first_special; /* the lowest positive code that is not finite */
  uint32_t infinity;      /* 0: none */
  double largest;
} type;

static const type types[] = {
    {"f16", EA_F16, 1U << 16, 10, 15, 0x7c00, 0x7c00, 65504.0},
    {"bf16", EA_BF16, 1U << 16, 7, 127, 0x7f80, 0x7f80, 0x1.fep127},
    {"e4m3", EA_E4M3, 1U << 8, 3, 7, 0x7f, 0, 448.0},
    {"e5m2", EA_E5M2, 1U << 8, 2, 15, 0x7c, 0x7c, 57344.0},
};
#define NUM_TYPES ((int)(sizeof types / sizeof types[0]))

/* Room for an element of any type, however few bytes the code has. */
typedef union element {
  uint64_t all;
  uint16_t wide;
  uint8_t narrow;
} element;

static double decode(const type *t, uint32_t code) {
  element e = {0};
  if (t->num_codes == 256) {
    e.narrow = (uint8_t)code;
  } else {
    e.wide = (uint16_t)code;
  }
  return ea_load_double(&e, t->dtype, 0);
}

static uint32_t encode(const type *t, double x) {
  element e = {0};
  ea_store_double(&e, t->dtype, 0, x);
  return t->num_codes == 256 ? e.narrow : e.wide;
}

static uint32_t sign_bit(const type *t) {
  return t->num_codes / 2;
}

/* A finite, positive code's value by the definition. */
static double value_of(const type *t, uint32_t code) {
  const uint32_t mantissa = code & ((1U << t->mantissa_bits) - 1);
  const int exponent = (int)(code >> t->mantissa_bits);
  if (exponent == 0) return ldexp(mantissa, 1 - t->bias - t->mantissa_bits);
  return ldexp(mantissa + (double)(1U << t->mantissa_bits), exponent - t->bias - t->mantissa_bits);
}

static void assert_code(const type *t, double x, uint32_t wanted) {
  const uint32_t found = encode(t, x);
  if (found != wanted) fail_msg("%s: %a became 0x%x, wanted 0x%x", t->name, x, found, wanted);
}

static void decodes_every_code(void **state) {
  (void)state;
  for (const type *t = types; t < types + NUM_TYPES; ++t) {
    for (uint32_t code = 0; code < sign_bit(t); ++code) {
      const double positive = decode(t, code);
      const double negative = decode(t, code | sign_bit(t));
      assert_int_equal(signbit(negative) != 0, 1);
      if (code < t->first_special) {
        assert_true(positive == value_of(t, code));
        assert_true(negative == -positive);
      } else if (t->infinity && code == t->infinity) {
        assert_true(isinf(positive) && positive > 0 && isinf(negative));
      } else {
        assert_true(isnan(positive) && isnan(negative));
      }
    }
    assert_true(decode(t, t->first_special - 1) == t->largest);
  }
}

static void encodes_back_every_code(void **state) {
  (void)state;
  for (const type *t = types; t < types + NUM_TYPES; ++t) {
    for (uint32_t code = 0; code < t->num_codes; ++code) {
      const double x = decode(t, code);
      const uint32_t found = encode(t, x);
      if (isnan(x)) {
        assert_true(isnan(decode(t, found)));
        assert_int_equal(found & sign_bit(t), code & sign_bit(t));
      } else {
        assert_code(t, x, code);
      }
    }
  }
}

/* Between two neighbours: below the middle goes down, above goes up, the middle to the even one. */
static void rounds_to_nearest_even(void **state) {
  (void)state;
  for (const type *t = types; t < types + NUM_TYPES; ++t) {
    for (uint32_t code = 0; code + 1 < t->first_special; ++code) {
      const double low = value_of(t, code);
      const double high = value_of(t, code + 1);
      const double middle = (low + high) / 2; /* exact: a double has the bits to spare */
      assert_code(t, middle, code & 1 ? code + 1 : code);
      assert_code(t, nextafter(middle, 0.0), code);
      assert_code(t, nextafter(middle, INFINITY), code + 1);
      assert_code(t, nextafter(low, INFINITY), code);
      assert_code(t, nextafter(high, 0.0), code + 1);
      assert_code(t, -middle, sign_bit(t) | (code & 1 ? code + 1 : code));
      assert_code(t, -nextafter(middle, INFINITY), sign_bit(t) | (code + 1));
    }
  }
}

/* Past the largest value: as if there were one more, then Inf, or NaN where there is no Inf. */
static void rounds_at_the_ends(void **state) {
  (void)state;
  for (const type *t = types; t < types + NUM_TYPES; ++t) {
    const uint32_t last = t->first_special - 1;
    const double past = t->largest + (t->largest - value_of(t, last - 1)) / 2;
    const uint32_t tie = last & 1 ? t->first_special : last;
    assert_code(t, nextafter(past, 0.0), last);
    assert_code(t, past, tie);
    const double beyond[] = {nextafter(past, INFINITY), 2 * past, FLT_MAX * 2.0, DBL_MAX, INFINITY};
    for (int i = 0; i < 5; ++i) {
      assert_code(t, beyond[i], t->first_special);
      assert_code(t, -beyond[i], sign_bit(t) | t->first_special);
    }
    const double least = value_of(t, 1);
    const double tiny[] = {0.0, 0x1p-1074, DBL_MIN, least / 4, least / 2};
    for (int i = 0; i < 5; ++i) {
      assert_code(t, tiny[i], 0);
      assert_code(t, -tiny[i], sign_bit(t));
    }
    assert_code(t, nextafter(least / 2, 1.0), 1);
    assert_true(isnan(decode(t, encode(t, NAN))));
    assert_true(isnan(decode(t, encode(t, -NAN))));
  }
}

/* One rounding, not two: near a middle of bf16, a float in between would sit on the middle. */
static void rounds_doubles_once(void **state) {
  (void)state;
  const double above_middle = 1.0 + 0x1p-8 + 0x1p-40;
  assert_int_equal(ea_bf16_from_double(above_middle), 0x3f81);
  assert_int_equal(ea_bf16_from_double((float)above_middle), 0x3f80);
  assert_int_equal(ea_f16_from_double(1.0 + 0x1p-11 + 0x1p-40), 0x3c01);
}

static void widens_to_float_exactly(void **state) {
  (void)state;
  for (uint32_t code = 0; code < 1U << 16; ++code) {
    const double f16 = decode(&types[0], code);
    const double bf16 = decode(&types[1], code);
    assert_true(isnan(f16) ? isnan(ea_f16_to_float((uint16_t)code)) : ea_f16_to_float((uint16_t)code) == f16);
    assert_true(isnan(bf16) ? isnan(ea_bf16_to_float((uint16_t)code)) : ea_bf16_to_float((uint16_t)code) == bf16);
  }
  for (uint32_t code = 0; code < 1U << 8; ++code) {
    const double e4m3 = decode(&types[2], code);
    const double e5m2 = decode(&types[3], code);
    assert_true(isnan(e4m3) ? isnan(ea_e4m3_to_float((uint8_t)code)) : ea_e4m3_to_float((uint8_t)code) == e4m3);
    assert_true(isnan(e5m2) ? isnan(ea_e5m2_to_float((uint8_t)code)) : ea_e5m2_to_float((uint8_t)code) == e5m2);
  }
}

static void loads_rows_like_elements(void **state) {
  (void)state;
  uint32_t words[64];
  for (uint32_t i = 0; i < 64; ++i) words[i] = 0x3c013c81U * (i + 1) & 0x4fff4fffU;
  const ea_dtype dtypes[] = {EA_F32, EA_F16, EA_BF16, EA_E4M3, EA_E5M2};
  for (int t = 0; t < 5; ++t) {
    double row[13];
    ea_load_doubles(row, words, dtypes[t], 5, 13);
    for (int d = 0; d < 13; ++d) {
      const double x = ea_load_double(words, dtypes[t], 5 + d);
      assert_true(isnan(x) ? isnan(row[d]) : row[d] == x);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(decodes_every_code),       cmocka_unit_test(encodes_back_every_code),
      cmocka_unit_test(rounds_to_nearest_even),   cmocka_unit_test(rounds_at_the_ends),
      cmocka_unit_test(rounds_doubles_once),      cmocka_unit_test(widens_to_float_exactly),
      cmocka_unit_test(loads_rows_like_elements),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
