/* Promises 1 to 5 of docs/testing.md on the CPU: the reference and the vectorised backend with
 * every instruction set that this processor has, on random cases of every feature and on every
 * head dimension that matters. A failure prints its seed, the smallest case found and how to
 * see it again. */
#include <stdio.h>
#include <string.h>

#include "../core/cmocka_all.h"
#include "check/promises.h"
#include "known_logits.h"

/* Sanitizers make everything about ten times slower. */
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

enum { RANDOM_CASES = SLOW_BUILD ? 8 : 30, MAX_SHRINKS = 300 };

/* Head dimensions of queries and keys, and of values. */
static const int32_t dims[][2] = {{64, 64},   {96, 96},   {128, 128}, {192, 192}, {256, 256}, {512, 512},
                                  {192, 128}, {288, 256}, {576, 512}, {576, 576}, {1, 1},     {13, 13},
                                  {80, 80},   {200, 200}, {40, 64},   {8, 512},   {257, 3},   {1, 576}};
enum { NUM_DIMS = sizeof dims / sizeof dims[0] };

/* A promise on one subject, over many cases. */
typedef struct trial {
  const ea_promise *promise;
  ea_family family;
  ea_isa isa;
  char name[64];
} trial;

/* Case n: one of each pair of dimensions, then anything. Under sanitizers every other pair, not
 * the same ones for every promise. */
static bool options_of_case(const trial *t, int n, ea_gen_options *options) {
  *options = (ea_gen_options)EA_GEN_OPTIONS_INIT;
  options->seed = (uint64_t)n + 1;
  if (n >= NUM_DIMS) return true;
  options->head_dim = dims[n][0];
  options->head_dim_v = dims[n][1];
  return !SLOW_BUILD || (n + (int)(t->promise - ea_promises)) % 2 == 0;
}

static void report(const trial *t, const ea_subject *subject, const ea_gen_options *options, ea_spec *spec,
                   ea_verdict *verdict) {
  char shape[1024], dim_options[64] = "";
  ea_spec_describe(spec, shape, sizeof shape);
  print_error("%s: seed %llu: %s\n  case: %s\n", t->name, (unsigned long long)options->seed, verdict->text, shape);
  const int tries = ea_promise_shrink(t->promise, subject, MAX_SHRINKS, spec, verdict);
  ea_spec_describe(spec, shape, sizeof shape);
  print_error("  smallest of %d: %s\n  case: %s\n", tries, verdict->text, shape);
  if (options->head_dim) {
    snprintf(dim_options, sizeof dim_options, " --head-dim %d --head-dim-v %d", options->head_dim, options->head_dim_v);
  }
  print_error("  again: extattn check --device cpu --isa %s --family %s --promise %s --cases 1 --seed %llu%s\n",
              t->isa ? ea_isa_name(t->isa) : "auto", ea_family_name(t->family), t->promise->name,
              (unsigned long long)options->seed, dim_options);
}

/* Whether the promise is kept; a CPU can do everything, so skipping a case would be wrong, too. */
static bool is_kept(const trial *t, const ea_subject *subject, const ea_gen_options *options) {
  ea_spec spec;
  ea_verdict verdict = {EA_KEPT, ""};
  ea_promise_draw(t->promise, options, &spec);
  t->promise->check(subject, &spec, &verdict);
  if (verdict.outcome == EA_KEPT) return true;
  report(t, subject, options, &spec, &verdict);
  return false;
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
    print_message("skipped: %s: %s\n", t->name, ea_last_error());
    skip();
  }
  assert_int_equal(status, EA_OK);
  bool kept = true;
  for (int n = 0; n < NUM_DIMS + RANDOM_CASES && kept; n++) {
    ea_gen_options options;
    if (!options_of_case(t, n, &options)) continue;
    kept = is_kept(t, &subject, &options);
  }
  ea_subject_close(&subject);
  assert_true(kept);
}

static void run_known_logits(void **state) {
  const trial *t = *state;
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  ea_plan_options plan = EA_PLAN_OPTIONS_INIT;
  options.isa = t->isa;
  plan.family = t->family;
  ea_context *context;
  const ea_status status = ea_context_create(&options, &context);
  if (status == EA_ERR_UNSUPPORTED) {
    print_message("skipped: %s: %s\n", t->name, ea_last_error());
    skip();
  }
  assert_int_equal(status, EA_OK);
  assert_true(check_known_logits(context, &plan) > 0);
  ea_context_destroy(context);
}

int main(void) {
  enum { MAX_TRIALS = 64 };
  static trial trials[MAX_TRIALS];
  static struct CMUnitTest tests[MAX_TRIALS];
  int n = 0;
  for (int isa = EA_ISA_AUTO; isa <= EA_ISA_AMX; isa++) {
    for (int p = 0; p <= ea_num_promises && n < MAX_TRIALS; p++, n++) {
      const bool known = p == ea_num_promises;
      trial *t = &trials[n];
      t->promise = known ? NULL : &ea_promises[p];
      t->family = isa == EA_ISA_AUTO ? EA_FAMILY_REFERENCE : EA_FAMILY_CPU;
      t->isa = (ea_isa)isa;
      snprintf(t->name, sizeof t->name, "%s %s", isa == EA_ISA_AUTO ? "reference" : ea_isa_name(t->isa),
               known ? "known logits" : t->promise->name);
      tests[n] = (struct CMUnitTest){t->name, known ? run_known_logits : run_trial, NULL, NULL, t};
    }
  }
  /* cmocka's group function wants the array itself. */
  return _cmocka_run_group_tests("promises", tests, (size_t)n, NULL, NULL);
}
