/* The floating-point types of the project, one number at a time and by their definition.
 * Written for the tests only, so that they do not lean on the conversions they test. */
#ifndef EA_CHECK_NUMBER_H
#define EA_CHECK_NUMBER_H

#include <stdint.h>

#include "extattn.h"

/* The nearest number of a floating type, ties to even; overflow gives Inf, or NaN in e4m3,
 * which has no Inf. Its bits, in the low bytes. */
uint32_t ea_number_encode(ea_dtype dtype, double x);
double ea_number_decode(ea_dtype dtype, uint32_t bits);

/* Element i of an array of a floating type. */
double ea_number_load(ea_dtype dtype, const void *data, int64_t i);
uint32_t ea_number_load_bits(ea_dtype dtype, const void *data, int64_t i);
void ea_number_store(ea_dtype dtype, void *data, int64_t i, double x);
void ea_number_store_bits(ea_dtype dtype, void *data, int64_t i, uint32_t bits);

#endif
