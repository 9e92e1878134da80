/* Random numbers for tests: the same on every machine, so that a seed names a case
 * everywhere. xoshiro256** (Blackman and Vigna, 2018), seeded through splitmix64 as its
 * authors advise; streams of their own come from mixing names into the seed. */
#ifndef EA_CHECK_RANDOM_H
#define EA_CHECK_RANDOM_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* splitmix64's output function: any change of x changes all bits of the result. */
static inline uint64_t ea_mix(uint64_t x) {
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

/* A seed that depends on all of its parts and on their order. */
static inline uint64_t ea_mix3(uint64_t seed, uint64_t a, uint64_t b) {
  return ea_mix(ea_mix(ea_mix(seed) ^ a) + b);
}

typedef struct ea_rng {
  uint64_t s[4];
} ea_rng;

static inline ea_rng ea_rng_of(uint64_t seed) {
  ea_rng rng;
  for (int i = 0; i < 4; i++) rng.s[i] = ea_mix(seed + (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15));
  return rng;
}

static inline uint64_t ea_rng_next(ea_rng *rng) {
  uint64_t *s = rng->s;
  const uint64_t scrambled = s[1] * 5;
  const uint64_t result = (scrambled << 7 | scrambled >> 57) * 9;
  const uint64_t t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = s[3] << 45 | s[3] >> 19;
  return result;
}

/* Uniform in [0, n), n >= 1. The bias is below n / 2^32. */
static inline uint32_t ea_rng_below(ea_rng *rng, uint32_t n) {
  return (uint32_t)((ea_rng_next(rng) >> 32) * n >> 32);
}

/* Uniform in [low, high]. */
static inline int32_t ea_rng_range(ea_rng *rng, int32_t low, int32_t high) {
  return (int32_t)(low + (int64_t)ea_rng_below(rng, (uint32_t)(high - low) + 1));
}

static inline bool ea_rng_percent(ea_rng *rng, uint32_t percent) {
  return ea_rng_below(rng, 100) < percent;
}

/* Uniform in [0, 1). */
static inline double ea_rng_uniform(ea_rng *rng) {
  return (double)(ea_rng_next(rng) >> 11) * 0x1p-53;
}

/* n independent standard normal numbers (Box-Muller; a pair of 24-bit uniform numbers each). */
static inline void ea_rng_normal(ea_rng *rng, double *x, int n) {
  for (int i = 0; i < n; i += 2) {
    const uint64_t drawn = ea_rng_next(rng);
    const float radius = sqrtf(-2.0f * logf((float)((drawn >> 40) + 1) * 0x1p-24f));
    const float angle = (float)(drawn & 0xffffff) * 0x1.921fb6p+2f * 0x1p-24f; /* of 2 pi */
    x[i] = (double)(radius * cosf(angle));
    if (i + 1 < n) x[i + 1] = (double)(radius * sinf(angle));
  }
}

#endif
