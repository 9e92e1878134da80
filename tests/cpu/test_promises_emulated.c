/* The promises of semantics.md, on random cases of every feature, kept by the emulated AVX-512
 * and AMX kernels: what tests/promises checks on processors that have them. */
#include <stdio.h>

#include "../core/cmocka_all.h"
#include "../promises/known_logits.h"
#include "check/promises.h"

enum { FIRST_SEED = 1000, CASES = EA_CASES };

typedef struct trial {
  const ea_promise *promise;
  ea_isa isa;
  char name[64];
} trial;

static void run_trial(void **state) {
  const trial *t = *state;
  ea_context_options context = EA_CONTEXT_OPTIONS_INIT;
  ea_plan_options plan = EA_PLAN_OPTIONS_INIT;
  ea_subject subject;
  context.isa = t->isa;
  plan.family = EA_FAMILY_CPU;
  assert_int_equal(ea_subject_open(&context, &plan, &subject), EA_OK);
  int broken = 0;
  for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + CASES; ++seed) {
    ea_gen_options options = EA_GEN_OPTIONS_INIT;
    ea_spec spec;
    ea_verdict verdict = {EA_KEPT, ""};
    options.seed = seed;
    ea_promise_draw(t->promise, &options, &spec);
    t->promise->check(&subject, &spec, &verdict);
    if (verdict.outcome == EA_KEPT) continue;
    char shape[1024];
    ea_spec_describe(&spec, shape, sizeof shape);
    print_error("%s: seed %llu: %s\n  case: %s\n", t->name, (unsigned long long)seed, verdict.text, shape);
    ++broken;
  }
  ea_subject_close(&subject);
  assert_int_equal(broken, 0);
}

static void run_known_logits(void **state) {
  const trial *t = *state;
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  ea_plan_options plan = EA_PLAN_OPTIONS_INIT;
  ea_context *context;
  options.isa = t->isa;
  plan.family = EA_FAMILY_CPU;
  assert_int_equal(ea_context_create(&options, &context), EA_OK);
  assert_true(check_known_logits(context, &plan) > 0);
  ea_context_destroy(context);
}

int main(void) {
  enum { MAX_TRIALS = 64 };
  static trial trials[MAX_TRIALS];
  static struct CMUnitTest tests[MAX_TRIALS];
  size_t n = 0;
  if (!__builtin_cpu_supports("avx2")) {
    puts("skipped: the emulation needs AVX2");
    return 77;
  }
  for (int isa = EA_ISA_AVX512; isa <= EA_ISA_AMX; ++isa) {
    for (int p = 0; p <= ea_num_promises && n < MAX_TRIALS; ++p, ++n) {
      const bool known = p == ea_num_promises;
      trials[n].promise = known ? NULL : &ea_promises[p];
      trials[n].isa = (ea_isa)isa;
      (void)snprintf(trials[n].name, sizeof trials[n].name, "%s %s", ea_isa_name((ea_isa)isa),
                     known ? "known logits" : ea_promises[p].name);
      tests[n] = (struct CMUnitTest){trials[n].name, known ? run_known_logits : run_trial, NULL, NULL, &trials[n]};
    }
  }
  return _cmocka_run_group_tests("promises, emulated", tests, n, NULL, NULL);
}
