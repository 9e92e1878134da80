/* Results that are known by hand, of logits far from what a softmax usually sees: the smallest cases of what was once
 * wrong. For the tests of every backend. */
#ifndef EA_TESTS_KNOWN_LOGITS_H
#define EA_TESTS_KNOWN_LOGITS_H

#include "extattn.h"

/* Runs them with plans of these options, at every head dimension that they take; fails the cmocka test with the case.
 * Returns how many were run. */
int check_known_logits(ea_context *context, const ea_plan_options *options);

#endif
