/* Numbers for extreme logits: from nothing to the largest that the types have, of both signs, equal and nearly equal
 * ones among them. A token's q and k have one element that is not zero, at a place that its K/V head has in common, so
 * that every score is a single product, exact in f32 in any order of summing: what a backend makes of it can then be
 * compared with the float64 reference however large it is. */
#ifndef EA_CHECK_EXTREMES_H
#define EA_CHECK_EXTREMES_H

#include "check/generate.h"
#include "check/random.h"

/* Exponents of the case's q and k, drawn within what its types hold. */
void ea_extremes_draw(ea_rng *rng, ea_spec *spec);

/* A token's q (of_q) or k, for all heads, before it is rounded to its type. cached: its type is the cache's. */
void ea_extremes_numbers(const ea_spec *spec, bool of_q, bool cached, ea_rng *rng, double *numbers);

/* Largest error that f32 arithmetic may leave in a logit of the case: 0 where all logits are exact products. */
double ea_extremes_noise(const ea_spec *spec);

/* The largest that a key's element can be. */
double ea_extremes_key_size(const ea_spec *spec);

#endif
