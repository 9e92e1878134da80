/* Shared memory, barriers, and asynchronous copies. */
#include "block.h"

#include <stdio.h>
#include <stdlib.h>

#include "tensor_map.h"

extern __thread char smem[];

/* ---- shared memory ---------------------------------------------------------------------------- */

uint32_t emu_shared_address(const void *generic) {
  const ptrdiff_t offset = (const char *)generic - smem;
  if (offset < 0 || (size_t)offset > EMU_SHARED_BYTES) emu_fail("%p is not in shared memory", generic);
  return EMU_SHARED_BASE + (uint32_t)offset;
}

void *emu_shared_pointer(uint32_t address) {
  return smem + (address - EMU_SHARED_BASE);
}

char *emu_shared_at(uint32_t address) {
  return smem + (address - EMU_SHARED_BASE);
}

void emu_shared_check(uint32_t address, uint32_t bytes, const char *what) {
  const uint32_t offset = address - EMU_SHARED_BASE;
  if (address < EMU_SHARED_BASE || (uint64_t)offset + bytes > emu_now->shared_bytes) {
    emu_fail("%s of %u bytes at offset %d: the block has %u bytes of shared memory", what, bytes, (int)offset,
             emu_now->shared_bytes);
  }
  if (bytes <= 16 && address % bytes != 0) emu_fail("%s of %u bytes at offset %u: not aligned", what, bytes, offset);
}

void *emu_shared_read(uint32_t address, uint32_t bytes) {
  emu_shared_check(address, bytes, "ld.shared");
  return emu_shared_at(address);
}

static uint16_t *writer_of(uint32_t address) {
  return &emu_now->writer[(address - EMU_SHARED_BASE) / EMU_UNIT];
}

/* A write by the generic proxy: the async proxy may not look before its writer has fenced. */
static void note_generic_write(emu_fiber *fiber, uint32_t address, bool complete) {
  const uint16_t mark = (uint16_t)(fiber->id + 1);
  uint16_t *writer = writer_of(address);
  if (complete && (*writer != mark || fiber->unfenced.empty() || fiber->unfenced.back() != writer - emu_now->writer)) {
    fiber->unfenced.push_back((uint16_t)(writer - emu_now->writer));
  }
  *writer = mark;
}

void *emu_shared_write(uint32_t address, uint32_t bytes) {
  emu_shared_check(address, bytes, "st.shared");
  note_generic_write(&emu_me(), address, true);
  return emu_shared_at(address);
}

void emu_fence_proxy_async(void) {
  emu_fiber &me = emu_me();
  for (const uint16_t unit : me.unfenced) {
    if (emu_now->writer[unit] == me.id + 1) emu_now->writer[unit] = 0;
  }
  me.unfenced.clear();
  for (const auto &arrivals : me.known) {
    for (const emu_arrived &a : *arrivals) {
      if (emu_now->writer[a.unit] == a.mark) emu_now->writer[a.unit] = 0;
    }
    arrivals->clear(); /* the writers' next writes there are others */
  }
  me.known.clear();
}

uint32_t emu_swizzle_128(uint32_t address) {
  return address ^ ((address >> 7 & 7) << 4);
}

/* ---- named barriers --------------------------------------------------------------------------- */

static emu_named_bar *bar_of(int id, int threads) {
  if (id < 0 || id > 15) emu_fail("bar: found barrier %d, allowed 0 to 15", id);
  if (threads <= 0 || threads % EMU_WARP != 0 || threads > emu_now->threads) {
    emu_fail("bar %d: found %d threads, allowed multiples of 32 up to the block's %d", id, threads, emu_now->threads);
  }
  emu_named_bar *bar = &emu_now->bars[id];
  if (bar->arrived == 0) {
    bar->expected = threads;
  } else if (bar->expected != threads) {
    emu_fail("bar %d: found %d threads where others said %d", id, threads, bar->expected);
  }
  for (const emu_fiber *f : bar->passed_by) {
    if (f == &emu_me()) emu_fail("bar %d: comes again before the barrier it arrived at is complete", id);
  }
  return bar;
}

/* Whether this thread was the last. */
static bool bar_count(emu_named_bar *bar, bool value) {
  bar->vote |= value;
  if (++bar->arrived < bar->expected) return false;
  for (emu_fiber *f : bar->waiting) {
    f->voted = bar->vote;
    emu_make_ready(f);
  }
  *bar = emu_named_bar{};
  return true;
}

bool emu_bar(int id, int threads, bool value) {
  emu_maybe_yield();
  emu_named_bar *bar = bar_of(id, threads);
  const bool vote = bar->vote || value;
  if (bar_count(bar, value)) return vote;
  bar->waiting.push_back(&emu_me());
  emu_wait_for(EMU_AT_BAR, "bar.sync", (uint32_t)id, 0);
  return emu_me().voted;
}

void emu_bar_arrive(int id, int threads) {
  emu_maybe_yield();
  emu_named_bar *bar = bar_of(id, threads);
  if (!bar_count(bar, false)) bar->passed_by.push_back(&emu_me());
}

/* ---- mbarriers -------------------------------------------------------------------------------- */

static const uint64_t MBARRIER_MARK = 0x6d62617272696572ull; /* what lies in its 8 bytes */

static emu_mbarrier *mbarrier_of(uint32_t address, const char *what) {
  emu_shared_check(address, 8, what);
  const auto found = emu_now->mbarriers.find(address);
  if (found == emu_now->mbarriers.end()) {
    emu_fail("%s at offset %u: there is no mbarrier", what, address - EMU_SHARED_BASE);
  }
  if (memcmp(emu_shared_at(address), &MBARRIER_MARK, 8) != 0) {
    emu_fail("%s at offset %u: the mbarrier has been overwritten", what, address - EMU_SHARED_BASE);
  }
  return &found->second;
}

void emu_mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  emu_shared_check(barrier, 8, "mbarrier.init");
  if (arrivals == 0 || arrivals >= 1u << 20)
    emu_fail("mbarrier.init: found %u arrivals, allowed 1 to 2^20 - 1", arrivals);
  if (emu_now->mbarriers.count(barrier)) {
    emu_fail("mbarrier.init at offset %u: there is one already", barrier - EMU_SHARED_BASE);
  }
  emu_mbarrier &m = emu_now->mbarriers[barrier];
  m = emu_mbarrier{};
  m.expected = m.pending = arrivals;
  memcpy(emu_shared_at(barrier), &MBARRIER_MARK, 8);
}

void emu_mbarrier_inval(uint32_t barrier) {
  const emu_mbarrier *m = mbarrier_of(barrier, "mbarrier.inval");
  if (!m->waiting.empty()) emu_fail("mbarrier.inval at offset %u: threads wait there", barrier - EMU_SHARED_BASE);
  emu_now->mbarriers.erase(barrier);
  memset(emu_shared_at(barrier), 0xff, 8);
}

static void mbarrier_look(emu_mbarrier *m) {
  if (m->pending != 0 || m->tx != 0) return;
  m->phase++;
  m->pending = m->expected;
  m->before = std::move(m->now);
  m->now = nullptr;
  emu_now->idle_rounds = 0;
  for (emu_fiber *f : m->waiting) emu_make_ready(f);
  m->waiting.clear();
}

static void arrive(uint32_t barrier, uint32_t arrivals, uint32_t expected_bytes, const char *what) {
  emu_mbarrier *m = mbarrier_of(barrier, what);
  if (arrivals > m->pending) {
    emu_fail("%s at offset %u: one arrival too many in phase %u (%lld are expected, %lld bytes are still to come)",
             what, barrier - EMU_SHARED_BASE, m->phase, (long long)m->expected, (long long)m->tx);
  }
  m->tx += expected_bytes;
  if (m->tx >= 1 << 20) emu_fail("%s: %lld bytes are more than a barrier counts", what, (long long)m->tx);
  m->pending -= arrivals;
  mbarrier_look(m);
}

void emu_mbarrier_arrive(uint32_t barrier, uint32_t arrivals, uint32_t expected_bytes) {
  emu_maybe_yield();
  arrive(barrier, arrivals, expected_bytes, expected_bytes ? "mbarrier.arrive.expect_tx" : "mbarrier.arrive");
}

void emu_mbarrier_complete_tx(uint32_t barrier, uint32_t bytes) {
  emu_mbarrier *m = mbarrier_of(barrier, "complete_tx");
  m->tx -= bytes;
  mbarrier_look(m);
}

/* Whether the phase is over; then this thread knows what has arrived. */
static bool phase_over(const emu_mbarrier *m, uint32_t parity) {
  if ((m->phase & 1) == (parity & 1)) return false;
  if (m->before && !m->before->empty()) emu_me().known.push_back(m->before);
  return true;
}

bool emu_mbarrier_test(uint32_t barrier, uint32_t parity) {
  emu_maybe_yield();
  emu_fiber &me = emu_me();
  if (phase_over(mbarrier_of(barrier, "mbarrier.test_wait"), parity)) {
    me.polls = 0;
    return true;
  }
  if (++me.polls > 2) { /* others first */
    emu_now->pollers.push_back(&me);
    emu_wait_for(EMU_POLLS, "", barrier, parity);
  }
  return false;
}

void emu_mbarrier_wait(uint32_t barrier, uint32_t parity) {
  emu_maybe_yield();
  for (;;) {
    emu_mbarrier *m = mbarrier_of(barrier, "mbarrier.try_wait");
    if (phase_over(m, parity)) return;
    m->waiting.push_back(&emu_me());
    emu_wait_for(EMU_AT_MBARRIER, "", barrier, parity & 1);
  }
}

/* ---- cp.async --------------------------------------------------------------------------------- */

static void make_copy(emu_copy *copy) {
  if (copy->done) return;
  char *dst = emu_shared_at(copy->dst);
  if (copy->bytes) memcpy(dst, copy->src, copy->bytes);
  memset(dst + copy->bytes, 0, 16 - copy->bytes);
  copy->done = true;
}

void emu_cp_async(uint32_t dst, const void *src, uint32_t src_bytes) {
  emu_shared_check(dst, 16, "cp.async");
  if (src_bytes > 16) emu_fail("cp.async: found %u bytes, allowed 16", src_bytes);
  if ((uintptr_t)src % 16 != 0) emu_fail("cp.async: source %p is not aligned", src);
  emu_fiber &me = emu_me();
  note_generic_write(&me, dst, false); /* no fence helps before it is complete */
  me.copies.push_back({dst, src_bytes, src, INT64_MAX, false});
  if (emu_now->order == EMU_EARLY || emu_chance(2)) {
    make_copy(&me.copies.back());
  } else {
    memset(emu_shared_at(dst), 0xff, 16); /* from here on the old contents may be gone */
  }
}

void emu_cp_async_commit(void) {
  emu_fiber &me = emu_me();
  me.copy_groups++;
  for (size_t i = me.copies.size(); i-- > 0 && me.copies[i].group == INT64_MAX;) me.copies[i].group = me.copy_groups;
}

/* The oldest is done and, where the thread itself waits for it, one of its writes like any other. */
static void retire_copy(emu_fiber *fiber, bool waited) {
  emu_copy &copy = fiber->copies.front();
  make_copy(&copy);
  if (waited && *writer_of(copy.dst) == fiber->id + 1) note_generic_write(fiber, copy.dst, true);
  fiber->copies.pop_front();
  fiber->copies_gone++;
}

void emu_cp_async_wait(int newest_groups) {
  emu_fiber &me = emu_me();
  if (!me.copies.empty() && me.copies.front().group <= me.copy_groups - newest_groups) emu_idle();
  while (!me.copies.empty() && me.copies.front().group <= me.copy_groups - newest_groups) retire_copy(&me, true);
}

void emu_cp_async_wait_all(void) {
  if (!emu_me().copies.empty()) emu_idle();
  while (!emu_me().copies.empty()) retire_copy(&emu_me(), true);
}

/* ---- events ----------------------------------------------------------------------------------- */

static void copies_arrive(const emu_event *event) {
  emu_fiber *fiber = event->fiber;
  emu_mbarrier *barrier = mbarrier_of(event->barrier, "cp.async.mbarrier.arrive");
  while (fiber->copies_gone < event->upto) retire_copy(fiber, false);
  if (!event->units->empty()) {
    if (!barrier->now) barrier->now = std::make_shared<emu_arrivals>();
    barrier->now->insert(barrier->now->end(), event->units->begin(), event->units->end());
  }
  arrive(event->barrier, 1, 0, "cp.async.mbarrier.arrive");
}

static void tma_arrives(const emu_event *event) {
  const emu_tensor_map *map = (const emu_tensor_map *)event->map;
  const uint32_t row_bytes = map->box[0] * map->element_bytes;
  uint32_t rows = 1;
  for (int d = 1; d < event->rank; d++) rows *= map->box[d];
  for (uint32_t row = 0; row < rows; row++) {
    bool inside = true;
    const char *src = (const char *)map->address;
    uint32_t rest = row;
    for (int d = 1; d < event->rank; d++) {
      const int64_t at = (int64_t)event->at[d] + rest % map->box[d];
      rest /= map->box[d];
      inside = inside && at >= 0 && at < (int64_t)map->dims[d];
      src += at * (int64_t)map->strides[d - 1];
    }
    for (uint32_t byte = 0; byte < row_bytes; byte += 16) {
      const uint32_t plain = event->dst + row * row_bytes + byte;
      const uint32_t dst = map->swizzle_128 ? emu_swizzle_128(plain) : plain;
      char *to = emu_shared_at(dst);
      for (uint32_t e = 0; e < 16; e += map->element_bytes) {
        const int64_t at = (int64_t)event->at[0] + (byte + e) / map->element_bytes;
        if (inside && at >= 0 && at < (int64_t)map->dims[0]) {
          memcpy(to + e, src + at * map->element_bytes, map->element_bytes);
        } else {
          memset(to + e, 0, map->element_bytes);
        }
      }
    }
  }
  emu_mbarrier_complete_tx(event->barrier, rows * row_bytes);
}

/* An event that somebody waits for, so that what nobody has waited for stays in flight; else `otherwise`. */
static size_t first_awaited(size_t otherwise) {
  for (size_t i = 0; i < emu_now->events.size(); i++) {
    const auto found = emu_now->mbarriers.find(emu_now->events[i].barrier);
    if (found != emu_now->mbarriers.end() && !found->second.waiting.empty()) return i;
  }
  return otherwise;
}

bool emu_something_happens() {
  std::deque<emu_event> &events = emu_now->events;
  if (events.empty()) return false;
  size_t which = emu_now->order == EMU_RANDOM ? emu_draw((uint32_t)events.size()) : 0;
  if (emu_now->order == EMU_LATE || emu_chance(2)) which = first_awaited(which);
  const emu_event event = events[which];
  events.erase(events.begin() + (ptrdiff_t)which);
  if (event.is_tma) {
    tma_arrives(&event);
  } else {
    copies_arrive(&event);
  }
  return true;
}

static void enqueue(const emu_event &event) {
  emu_now->events.push_back(event);
  if (emu_now->order == EMU_EARLY) emu_something_happens();
}

void emu_cp_async_arrive(uint32_t barrier) {
  emu_fiber &me = emu_me();
  emu_event event = {};
  event.barrier = barrier;
  event.fiber = &me;
  event.upto = me.copies_gone + (int64_t)me.copies.size();
  event.units = std::make_shared<emu_arrivals>();
  for (size_t i = 0; i < me.copies.size(); i++) {
    const uint16_t *writer = writer_of(me.copies[i].dst);
    if (me.copies_gone + (int64_t)i < me.copies_told || *writer != me.id + 1) continue;
    event.units->push_back({(uint16_t)(writer - emu_now->writer), *writer});
  }
  me.copies_told = event.upto;
  mbarrier_of(barrier, "cp.async.mbarrier.arrive");
  enqueue(event);
}

void emu_tma_load(uint32_t dst, const struct ea_tensor_map *map, uint32_t barrier, const int32_t *at, int rank) {
  emu_maybe_yield();
  emu_event event = {};
  event.is_tma = true;
  event.barrier = barrier;
  event.dst = dst;
  event.rank = rank;
  memcpy(event.map, map, sizeof event.map);
  for (int d = 0; d < rank; d++) event.at[d] = at[d];
  const emu_tensor_map *decoded = (const emu_tensor_map *)event.map;
  if (decoded->mark != EMU_TENSOR_MAP_MARK) emu_fail("cp.async.bulk.tensor: not a tensor map");
  if ((int)decoded->rank != rank) emu_fail("cp.async.bulk.tensor: found a map of rank %u for %d", decoded->rank, rank);
  uint32_t bytes = decoded->element_bytes;
  for (int d = 0; d < rank; d++) bytes *= decoded->box[d];
  emu_shared_check(dst, bytes, "cp.async.bulk.tensor");
  if (dst % (decoded->swizzle_128 ? 1024 : 128) != 0 && !decoded->swizzle_128) {
    emu_fail("cp.async.bulk.tensor: offset %u is not aligned", dst - EMU_SHARED_BASE);
  }
  if (dst % 128 != 0) emu_fail("cp.async.bulk.tensor: offset %u is not aligned", dst - EMU_SHARED_BASE);
  mbarrier_of(barrier, "cp.async.bulk.tensor");
  for (uint32_t byte = 0; byte < bytes; byte += EMU_UNIT) {
    const uint16_t writer = *writer_of(dst + byte);
    if (writer) {
      emu_fail("cp.async.bulk.tensor writes offset %u, which thread %d wrote without a fence.proxy.async since",
               dst + byte - EMU_SHARED_BASE, writer - 1);
    }
  }
  if (emu_now->order != EMU_EARLY) memset(emu_shared_at(dst), 0xff, bytes);
  enqueue(event);
}

void emu_end_copies() {
  bool left = !emu_now->events.empty();
  for (const emu_fiber &f : emu_now->fibers) {
    for (const emu_copy &copy : f.copies) left = left || !copy.done;
  }
  if (left) emu_fail("the block ends with copies in flight that nobody waited for");
}
