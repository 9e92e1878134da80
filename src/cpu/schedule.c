/* Longest-first enumeration of work items in a few passes over the batch: pass p yields the
 * blocks whose cost is in (max / 2^(p+1), max / 2^p], the last pass all that remain. */
#include "cpu/schedule.h"

enum { LAST_PASS = 6 };

/* With fewer items a thread than this, blocks are made smaller. */
enum { ITEMS_PER_THREAD = 4 };

static int32_t block_rows_of(const ea_cpu_schedule *schedule, const ea_view *view, int64_t block) {
  const int64_t left = (int64_t)view->extend * schedule->call->group - block * schedule->block_rows;
  return left < schedule->block_rows ? (int32_t)left : schedule->block_rows;
}

static int64_t block_cost(const ea_cpu_schedule *schedule, const ea_view *view, int64_t block) {
  const int32_t group = schedule->call->group;
  const int64_t first = block * schedule->block_rows;
  const int32_t rows = block_rows_of(schedule, view, block);
  const ea_key_range keys =
      ea_visible_keys(view, ea_row_query(first, group), ea_row_query(first + rows - 1, group) + 1);
  return (int64_t)ea_max_i32(keys.end - keys.first, 0) * rows;
}

static int64_t count_blocks(const ea_call *call, int32_t block_rows) {
  int64_t blocks = 0;
  for (int64_t b = 0; b < call->num_seqs; ++b) {
    blocks += ea_row_blocks(call->qo_indptr[b + 1] - call->qo_indptr[b], call->group, block_rows);
  }
  return blocks;
}

ea_cpu_schedule ea_cpu_schedule_make(const ea_call *call, int32_t max_rows, int32_t row_step, int num_threads) {
  ea_cpu_schedule schedule = {call, max_rows, 0};
  while (schedule.block_rows >= 2 * row_step &&
         count_blocks(call, schedule.block_rows) * call->num_kv_heads < (int64_t)ITEMS_PER_THREAD * num_threads) {
    schedule.block_rows = schedule.block_rows / 2 / row_step * row_step;
  }
  for (int64_t b = 0; b < call->num_seqs; ++b) {
    const ea_view view = ea_view_of(call, b);
    const int64_t blocks = ea_row_blocks(view.extend, call->group, schedule.block_rows);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t cost = block_cost(&schedule, &view, block);
      if (cost > schedule.max_cost) schedule.max_cost = cost;
    }
  }
  return schedule;
}

static int pass_of(const ea_cpu_schedule *schedule, int64_t cost) {
  int pass = 0;
  while (pass < LAST_PASS && cost <= schedule->max_cost >> (pass + 1)) ++pass;
  return pass;
}

bool ea_cpu_cursor_seek(ea_cpu_cursor *cursor, int64_t number, ea_cpu_item *item) {
  const ea_cpu_schedule *schedule = cursor->schedule;
  const ea_call *call = schedule->call;
  const int64_t heads = call->num_kv_heads;
  for (; cursor->pass <= LAST_PASS; ++cursor->pass, cursor->seq = 0) {
    for (; cursor->seq < call->num_seqs; ++cursor->seq, cursor->started = false) {
      const ea_view view = ea_view_of(call, cursor->seq);
      if (!cursor->started) {
        cursor->block = ea_row_blocks(view.extend, call->group, schedule->block_rows) - 1;
        cursor->started = true;
      }
      for (; cursor->block >= 0; --cursor->block) {
        if (pass_of(schedule, block_cost(schedule, &view, cursor->block)) != cursor->pass) continue;
        if (number < cursor->first_item + heads) {
          item->seq = cursor->seq;
          item->row_first = cursor->block * schedule->block_rows;
          item->rows = block_rows_of(schedule, &view, cursor->block);
          item->kv_head = (int32_t)(number - cursor->first_item);
          item->view = view;
          return true;
        }
        cursor->first_item += heads;
      }
    }
  }
  return false;
}
