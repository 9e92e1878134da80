/* Kernels that record their times, on the emulated GPU: they give the same bits, at every order of what is
 * asynchronous, and what they record is whole: every tile of every item, in each warp that has to do with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check/promises.h"
#include "check/runner.h"
#include "cuda/recording.h"
#include "extattn.h"
#include "plan/hopper_wide.h"
#include "timeline.h"

static ea_subject gpu;

enum { BLOCKS = 3, RECORDS_LOG2 = 14, FEW_LOG2 = 5, MAX_TILES = 64 };

typedef struct shape {
  int32_t dim, dim_v;
  bool latent, wide; /* wide: a consumer has every other tile's scores */
} shape;

static const shape shapes[] = {{64, 64, false, false}, {512, 512, false, true}, {576, 512, true, true}};

/* Several items a block, prefixes that are gathered, in runs and not, tiles with and without a mask. */
static void make_case(const shape *s, ea_slot_order slots, ea_case *c) {
  static const int32_t prefix[] = {200, 0, 70}, extend[] = {70, 130, 1};
  static ea_spec spec;
  ea_gen_options options = EA_GEN_OPTIONS_INIT;
  options.seed = (uint64_t)s->dim;
  options.max_work = INT64_MAX;
  options.dtype = options.cache_dtype = EA_BF16;
  options.head_dim = s->dim;
  options.head_dim_v = s->dim_v;
  options.shared_kv = s->latent ? EA_YES : EA_NO;
  options.num_q_heads = 4;
  options.num_kv_heads = s->latent ? 1 : 2;
  options.num_seqs = 3;
  options.prefix = prefix;
  options.extend = extend;
  options.window_left = -1;
  options.causal = EA_YES;
  options.custom_mask = options.skip_prefix = options.skip_extend = options.strided = EA_NO;
  options.xai_temperature_len = -1;
  options.k_scale = options.v_scale = 1.0;
  options.logit_cap = slots == EA_SLOTS_ORDERED ? -1.0 : 20.0; /* plain calls and others have kernels apart */
  ea_spec_random(&options, &spec);
  spec.slot_order = slots;
  if (ea_spec_build(&spec, c) != EA_OK) fail_msg("%s", ea_last_error());
}

static ea_runner *open_runner(const ea_case *c) {
  ea_runner *runner;
  if (ea_runner_create(gpu.context, &gpu.plan, c, EA_OUT_PACKED, &runner) != EA_OK) fail_msg("%s", ea_last_error());
  return runner;
}

static ea_result run(ea_runner *runner) {
  ea_result result = {0};
  if (ea_runner_run(runner, NULL, &result) != EA_OK) fail_msg("%s", ea_last_error());
  return result;
}

static void assert_same_bits(const ea_result *a, const ea_result *b, const char *order) {
  const size_t rows = (size_t)(a->tokens * a->heads);
  if (memcmp(a->out, b->out, rows * ea_result_row_bytes(a)) != 0 || memcmp(a->lse, b->lse, rows * sizeof(float)) != 0) {
    fail_msg("order %s: recording changes the result", order);
  }
}

/* Runs with recording, and compares the bits with those of a run without. */
static void record(ea_runner *runner, const ea_result *without, const char *order, int32_t records_log2,
                   ea_timeline *timeline) {
  ea_recording *recording;
  setenv("EA_EMULATED_ORDER", order, 1);
  if (ea_recording_begin(gpu.context, BLOCKS, records_log2, &recording) != EA_OK) fail_msg("%s", ea_last_error());
  ea_result with = run(runner);
  assert_same_bits(without, &with, order);
  ea_result_free(&with);
  if (ea_recording_fetch(recording) != EA_OK) fail_msg("%s", ea_last_error());
  if (ea_timeline_make(recording, BLOCKS, timeline) != EA_OK) fail_msg("%s", ea_last_error());
  ea_recording_end(recording);
}

/* ---- what a timeline must say ------------------------------------------------------------------- */

static void check_order_of_spans(const ea_timeline_track *track) {
  for (int32_t i = 0; i < track->num_spans; i++) {
    const ea_span *span = &track->spans[i];
    assert_true(span->begin_us >= 0 && span->begin_us <= span->end_us);
    if (i > 0) assert_true(span->begin_us == track->spans[i - 1].end_us);
    if (i > 0) assert_true(span->item == track->spans[i - 1].item || span->item == track->spans[i - 1].item + 1);
  }
}

/* How often a track says `kind` of each tile of an item. */
static void count_tiles(const ea_timeline_track *track, int32_t item, ea_mark_kind kind, int32_t counts[MAX_TILES]) {
  for (int32_t i = 0; i < track->num_spans; i++) {
    const ea_span *span = &track->spans[i];
    if (span->item != item || span->kind != kind) continue;
    assert_in_range(span->tile, 0, MAX_TILES - 1);
    counts[span->tile]++;
  }
}

/* Tiles [first, end), and no others, at least once; all equally often where `times` is 0, else so often. */
static void check_tiles(const int32_t counts[MAX_TILES], int32_t first, int32_t end, int32_t times, const char *what,
                        const char *order) {
  for (int32_t tile = 0; tile < MAX_TILES; tile++) {
    const bool wanted = tile >= first && tile < end;
    const bool right = wanted ? counts[tile] > 0 && (times == 0 || counts[tile] == times) : counts[tile] == 0;
    if (!right) fail_msg("order %s: %s of tile %d: %d of [%d, %d)", order, what, tile, counts[tile], first, end);
  }
}

static const ea_timeline_track *track_of(const ea_timeline_block *block, int32_t number) {
  for (int32_t t = 0; t < block->num_tracks; t++) {
    if (block->tracks[t].number == number) return &block->tracks[t];
  }
  fail_msg("block %d: no track %d", block->number, number);
  return NULL;
}

static void check_narrow_item(const ea_timeline_block *block, int32_t item, int32_t num_consumers, const char *order) {
  const ea_timeline_item *it = &block->items[item];
  static const ea_mark_kind of_producer[] = {EA_MARK_SLOT_K, EA_MARK_COPY_K, EA_MARK_SLOT_V, EA_MARK_COPY_V};
  static const ea_mark_kind of_consumer[] = {EA_MARK_WAIT_K, EA_MARK_ISSUE_S, EA_MARK_WAIT_S, EA_MARK_SOFTMAX,
                                             EA_MARK_WAIT_V, EA_MARK_ISSUE_O, EA_MARK_WAIT_O};
  for (size_t k = 0; k < sizeof of_producer / sizeof of_producer[0]; k++) {
    int32_t counts[MAX_TILES] = {0};
    count_tiles(track_of(block, 0), item, of_producer[k], counts);
    check_tiles(counts, it->first_step, it->end_step, 1, ea_mark_name(of_producer[k]), order);
  }
  for (int32_t c = 0; c < num_consumers; c++) {
    for (size_t k = 0; k < sizeof of_consumer / sizeof of_consumer[0]; k++) {
      int32_t counts[MAX_TILES] = {0};
      count_tiles(track_of(block, EA_MARK_PRODUCERS + c), item, of_consumer[k], counts);
      check_tiles(counts, it->first_step, it->end_step, 1, ea_mark_name(of_consumer[k]), order);
    }
  }
}

/* Each tile's scores are one consumer's, its output is both's; each ring is fed with what its consumer reads, unit by
 * unit. */
static void check_wide_item(const ea_timeline_block *block, int32_t item, const shape *s, const char *order) {
  const ea_wide_shape units = {"", s->dim, s->dim_v, s->latent, s->latent ? EA_WIDE_d576x512_UNIT : EA_WIDE_d512_UNIT};
  const int32_t k_units = ea_hopper_slices(s->dim) / units.unit, v_units = EA_WIDE_N / ea_wide_v_keys(units);
  const int32_t first = block->items[item].first_step * 2, end = block->items[item].end_step * 2; /* pairs of tiles */
  int32_t scores[MAX_TILES] = {0}, copies[MAX_TILES] = {0};
  for (int32_t c = 0; c < 2; c++) {
    const ea_timeline_track *consumer = track_of(block, EA_MARK_PRODUCERS + c), *producer = track_of(block, c * 2);
    int32_t outputs[MAX_TILES] = {0}, values[MAX_TILES] = {0};
    count_tiles(consumer, item, EA_MARK_ISSUE_S, scores);
    count_tiles(consumer, item, EA_MARK_ISSUE_O, outputs);
    check_tiles(outputs, first, end, 0, "issue O", order);
    count_tiles(producer, item, EA_MARK_COPY_K, copies);
    count_tiles(producer, item, EA_MARK_COPY_V, values);
    if (!s->latent) check_tiles(values, first, end, v_units, "copy V", order);
  }
  check_tiles(scores, first, end, s->latent ? 0 : 1, "issue S", order); /* latent: most in two parts */
  check_tiles(copies, first, end, k_units, "copy K", order);
}

static void check_block(const ea_timeline_block *block, const shape *s, const char *order) {
  const int32_t num_consumers = s->wide ? 2 : 3, num_producers = s->wide ? 3 : 2;
  assert_int_equal(block->num_tracks, num_producers + num_consumers);
  for (int32_t t = 0; t < block->num_tracks; t++) {
    check_order_of_spans(&block->tracks[t]);
    assert_int_equal(block->tracks[t].dropped, 0);
    assert_int_equal(block->tracks[t].spans[block->tracks[t].num_spans - 1].item, block->num_items - 1);
  }
  assert_true(block->num_items > 1);
  for (int32_t item = 0; item + 1 < block->num_items; item++) { /* behind the last there is only a search */
    const ea_timeline_item *it = &block->items[item];
    assert_true(it->token >= 0 && it->rows > 0 && it->kv_head >= 0 && it->end_step > it->first_step);
    assert_in_range(it->gather_end, it->first_step, it->end_step);
    if (s->wide) {
      check_wide_item(block, item, s, order);
    } else {
      check_narrow_item(block, item, num_consumers, order);
    }
  }
  assert_int_equal(block->items[block->num_items - 1].token, -1);
}

static void test_timelines(void **state) {
  const shape *s = *state;
  static const char *const orders[] = {"early", "late", "1", "2"};
  static const ea_slot_order slot_orders[] = {EA_SLOTS_SHUFFLED, EA_SLOTS_ORDERED};
  for (size_t i = 0; i < sizeof slot_orders / sizeof slot_orders[0]; i++) {
    ea_case c;
    make_case(s, slot_orders[i], &c);
    ea_runner *runner = open_runner(&c);
    setenv("EA_EMULATED_ORDER", orders[0], 1);
    ea_result without = run(runner);
    for (size_t o = 0; o < sizeof orders / sizeof orders[0]; o++) {
      ea_timeline timeline;
      record(runner, &without, orders[o], RECORDS_LOG2, &timeline);
      assert_int_equal(timeline.num_blocks, BLOCKS);
      for (int32_t b = 0; b < BLOCKS; b++) check_block(&timeline.blocks[b], s, orders[o]);
      ea_timeline_free(&timeline);
    }
    ea_result_free(&without);
    ea_runner_destroy(runner);
    ea_case_free(&c);
  }
}

/* Where there is no room, the first marks are kept and the others counted. */
static void test_no_room(void **state) {
  const shape *s = *state;
  ea_case c;
  make_case(s, EA_SLOTS_SHUFFLED, &c);
  ea_runner *runner = open_runner(&c);
  setenv("EA_EMULATED_ORDER", "early", 1);
  ea_result without = run(runner);
  ea_timeline all, few;
  record(runner, &without, "early", RECORDS_LOG2, &all);
  record(runner, &without, "early", FEW_LOG2, &few);
  assert_int_equal(few.num_blocks, all.num_blocks);
  for (int32_t b = 0; b < few.num_blocks; b++) {
    assert_int_equal(few.blocks[b].num_tracks, all.blocks[b].num_tracks);
    for (int32_t t = 0; t < few.blocks[b].num_tracks; t++) {
      const ea_timeline_track *kept = &few.blocks[b].tracks[t], *whole = &all.blocks[b].tracks[t];
      assert_true(kept->num_spans < 1 << FEW_LOG2);
      assert_true(kept->dropped > 0 ? kept->num_spans < whole->num_spans : kept->num_spans == whole->num_spans);
      check_order_of_spans(kept);
      for (int32_t i = 0; i < kept->num_spans; i++) {
        assert_int_equal(kept->spans[i].kind, whole->spans[i].kind);
        assert_int_equal(kept->spans[i].tile, whole->spans[i].tile);
      }
    }
  }
  assert_true(few.num_dropped > 0);
  ea_timeline_free(&few);
  ea_timeline_free(&all);
  ea_result_free(&without);
  ea_runner_destroy(runner);
  ea_case_free(&c);
}

int main(void) {
  ea_context_options context = EA_CONTEXT_OPTIONS_INIT;
  context.device = EA_DEVICE_CUDA;
  ea_plan_options plan = EA_PLAN_OPTIONS_INIT;
  plan.family = EA_FAMILY_HOPPER;
  if (ea_subject_open(&context, &plan, &gpu) != EA_OK) {
    printf("%s\n", ea_last_error());
    return 1;
  }
  static char names[8][32];
  struct CMUnitTest tests[8] = {{0}};
  size_t count = 0;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    for (int kind = 0; kind < 2; kind++) {
      snprintf(names[count], sizeof names[0], "%s_%dx%d", kind ? "no_room" : "timelines", shapes[i].dim,
               shapes[i].dim_v);
      tests[count] = (struct CMUnitTest){names[count], kind ? test_no_room : test_timelines, NULL, NULL,
                                         (void *)(uintptr_t)&shapes[i]};
      count++;
    }
  }
  const int failed = _cmocka_run_group_tests("marks", tests, count, NULL, NULL);
  ea_subject_close(&gpu);
  return failed ? 1 : 0;
}
