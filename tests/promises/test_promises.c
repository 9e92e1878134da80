/* Promises 1 to 5 of docs/testing.md on the CPU: the reference and the vectorised backend with
 * every instruction set that this processor has, on random cases of every feature. A failure
 * prints its seed, the smallest case found and how to see it again. */
#include <stdio.h>
#include <string.h>

#include "../core/cmocka_all.h"

#include "check/promises.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW_BUILD 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define SLOW_BUILD 1
#endif
#endif
#ifndef SLOW_BUILD
#define SLOW_BUILD 0
#endif

enum { CASES = SLOW_BUILD ? 12 : 40, MAX_SHRINKS = 300 };
#define FIRST_SEED 1

/* A promise on one subject, over many seeds. */
typedef struct trial {
  const ea_promise *promise;
  ea_family family;
  ea_isa isa;
  char name[64];
} trial;

static void report(const trial *t, const ea_subject *subject, uint64_t seed, ea_spec *spec, ea_verdict *verdict) {
  char shape[1024];
  ea_spec_describe(spec, shape, sizeof shape);
  print_error("%s: seed %llu: %s\n  case: %s\n", t->name, (unsigned long long)seed, verdict->text, shape);
  const int tries = ea_promise_shrink(t->promise, subject, MAX_SHRINKS, spec, verdict);
  ea_spec_describe(spec, shape, sizeof shape);
  print_error("  smallest of %d: %s\n  case: %s\n  again: extattn check --device cpu --isa %s --family %s --promise %s "
              "--cases 1 --seed %llu\n",
              tries, verdict->text, shape, ea_isa_name(t->isa), ea_family_name(t->family), t->promise->name,
              (unsigned long long)seed);
}

static void run_trial(void **state) {
  const trial *t = *state;
  ea_context_options context = EA_CONTEXT_OPTIONS_INIT;
  ea_plan_options plan = EA_PLAN_OPTIONS_INIT;
  context.isa = t->isa;
  plan.family = t->family;
  ea_subject subject;
  const ea_status status = ea_subject_open(&context, &plan, &subject);
  if (status == EA_ERR_UNSUPPORTED) {
    print_message("%s: skipped: %s\n", t->name, ea_last_error());
    skip();
  }
  assert_int_equal(status, EA_OK);
  bool broken = false;
  for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + CASES && !broken; seed++) {
    ea_gen_options options = EA_GEN_OPTIONS_INIT;
    options.seed = seed;
    ea_spec spec;
    ea_verdict verdict = {EA_KEPT, ""};
    ea_promise_draw(t->promise, &options, &spec);
    t->promise->check(&subject, &spec, &verdict);
    broken = verdict.outcome != EA_KEPT; /* a CPU can do everything, so skipping would be wrong too */
    if (broken) report(t, &subject, seed, &spec, &verdict);
  }
  ea_subject_close(&subject);
  assert_false(broken);
}

int main(void) {
  enum { MAX_TRIALS = 64 };
  static trial trials[MAX_TRIALS];
  static struct CMUnitTest tests[MAX_TRIALS];
  int n = 0;
  for (int isa = EA_ISA_AUTO; isa <= EA_ISA_AMX; isa++) {
    for (int p = 0; p < ea_num_promises && n < MAX_TRIALS; p++, n++) {
      trial *t = &trials[n];
      t->promise = &ea_promises[p];
      t->family = isa == EA_ISA_AUTO ? EA_FAMILY_REFERENCE : EA_FAMILY_CPU;
      t->isa = (ea_isa)isa;
      snprintf(t->name, sizeof t->name, "%s %s", isa == EA_ISA_AUTO ? "reference" : ea_isa_name(t->isa),
               t->promise->name);
      tests[n] = (struct CMUnitTest){t->name, run_trial, NULL, NULL, t};
    }
  }
  /* cmocka's group function wants the array itself. */
  return _cmocka_run_group_tests("promises", tests, (size_t)n, NULL, NULL);
}
