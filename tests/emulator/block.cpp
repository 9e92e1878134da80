/* Fibers and their order, and the instructions that a whole warp executes together. */
#include "block.h"

#include <atomic>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

__thread emu_thread *emu_self;
__thread emu_block *emu_now;
alignas(1024) __thread char smem[EMU_SHARED_BYTES]; /* the kernels' extern __shared__ char smem[] */

/* Strides that are not a power of two keep the stacks' hot ends out of each other's cache lines. */
enum { STACK_STRIDE = 65536 + 13 * 64 };
static const uint64_t CANARY = 0x5ca1ab1e0ddba11ull;
static __thread char *stacks;

void emu_fail(const char *format, ...) {
  char text[1024];
  size_t used = 0;
  used += (size_t)snprintf(text, sizeof text, "emulated GPU");
  if (emu_now) {
    const emu_index block = emu_now->fibers[0].block_index;
    used += (size_t)snprintf(text + used, sizeof text - used, ": %s block (%u, %u)", emu_now->kernel, block.x, block.y);
  }
  if (emu_self) {
    const emu_fiber &me = emu_me();
    used +=
        (size_t)snprintf(text + used, sizeof text - used, " thread %d (warp %d, lane %d)", me.id, me.warp->id, me.lane);
  }
  used += (size_t)snprintf(text + used, sizeof text - used, ": ");
  va_list args;
  va_start(args, format);
  vsnprintf(text + used, sizeof text - used, format, args);
  va_end(args);
  fflush(stdout);
  fprintf(stderr, "%s\n", text);
  fflush(stderr);
  signal(SIGABRT, SIG_DFL);
  abort();
}

static void on_fault(int number, siginfo_t *info, void *) {
  signal(number, SIG_DFL);
  if (emu_self) emu_fail("access of memory that is not there, address %p", info->si_addr);
  raise(number);
}

static void install_fault_handler() {
  static const bool once = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
    return true;
  }();
  (void)once;
}

/* ---- switching -------------------------------------------------------------------------------- */

extern "C" void emu_switch(void **from, void *to);
__asm__(".text\n.globl emu_switch\n.hidden emu_switch\n.type emu_switch, @function\nemu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size emu_switch, .-emu_switch\n");

uint64_t emu_draw(uint32_t below) {
  uint64_t x = emu_now->random; /* xorshift64* */
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  emu_now->random = x;
  return (x * 0x2545f4914f6cdd1dull >> 32) % below;
}

bool emu_chance(uint32_t one_in) {
  return emu_now->order == EMU_RANDOM && emu_draw(one_in) == 0;
}

void emu_make_ready(emu_fiber *fiber) {
  fiber->wait = EMU_RUNS;
  fiber->warp->ready |= 1u << fiber->lane;
  emu_now->ready_warps |= 1u << fiber->warp->id;
}

/* The table of a deadlock: lanes that wait for the same go together. */
[[noreturn]] static void fail_deadlock() {
  emu_block *b = emu_now;
  fflush(stdout);
  for (int w = 0; w < b->warps; w++) {
    uint32_t left = b->warp[w].lanes;
    while (left) {
      const emu_fiber &first = b->fibers[(size_t)(w * EMU_WARP + __builtin_ctz(left))];
      uint32_t same = 0;
      for (uint32_t rest = left; rest; rest &= rest - 1) {
        const emu_fiber &f = b->fibers[(size_t)(w * EMU_WARP + __builtin_ctz(rest))];
        if (f.wait == first.wait && f.wait_what == first.wait_what && f.wait_at == first.wait_at &&
            f.wait_parity == first.wait_parity) {
          same |= 1u << f.lane;
        }
      }
      left &= ~same;
      fprintf(stderr, "  warp %2d lanes %08x: ", w, same);
      switch (first.wait) {
      case EMU_AT_MBARRIER:
      case EMU_POLLS: {
        const auto found = b->mbarriers.find(first.wait_at);
        fprintf(stderr, "mbarrier at offset %u, parity %u", first.wait_at - EMU_SHARED_BASE, first.wait_parity);
        if (found != b->mbarriers.end()) {
          const emu_mbarrier &m = found->second;
          fprintf(stderr, " (phase %u lacks %lld of %lld arrivals and %lld bytes)", m.phase, (long long)m.pending,
                  (long long)m.expected, (long long)m.tx);
        }
        break;
      }
      case EMU_AT_BAR:
        fprintf(stderr, "%s %u (%d of %d threads are there)", first.wait_what, first.wait_at,
                b->bars[first.wait_at].arrived, b->bars[first.wait_at].expected);
        break;
      case EMU_AT_WARP:
        fprintf(stderr, "the other lanes, at %s", first.wait_what);
        break;
      case EMU_AT_GROUP:
        fprintf(stderr, "the other threads of the warpgroup, at %s", first.wait_what);
        break;
      case EMU_IS_THROUGH:
        fprintf(stderr, "through");
        break;
      default:
        fprintf(stderr, "runs");
      }
      fprintf(stderr, "\n");
    }
  }
  emu_fail("deadlock: no thread can go on and nothing is in flight; who waits for what stands above");
}

static emu_fiber *pick() {
  emu_block *b = emu_now;
  for (;;) {
    if (b->order == EMU_RANDOM) {
      if (!b->events.empty() && emu_draw(b->event_rate) == 0) emu_something_happens();
      if (b->products_waiting && emu_draw(b->product_rate) == 0) emu_product_happens();
    }
    if (b->ready_warps) {
      uint32_t choice = b->ready_warps;
      if (!(choice >> b->now & 1) || emu_chance(b->switch_rate)) {
        if (b->order == EMU_LATE) { /* those go first that a missing barrier would not have go first */
          b->now = 31 - __builtin_clz(choice);
        } else {
          const int turn = b->order == EMU_RANDOM ? (int)emu_draw(EMU_MAX_WARPS) : b->now + 1;
          const uint32_t behind = turn < 32 ? choice >> turn << turn : 0;
          b->now = __builtin_ctz(behind ? behind : choice);
        }
      }
      emu_warp &warp = b->warp[b->now];
      const uint32_t behind = warp.ready >> warp.rotation << warp.rotation;
      return &b->fibers[(size_t)(b->now * EMU_WARP + __builtin_ctz(behind ? behind : warp.ready))];
    }
    /* Products before copies: the latter have left NaN where they will write, so that a product which
     * did not wait for them shows, as does one whose operands were given away. */
    if (!b->idlers.empty() && !(!b->events.empty() && emu_chance(2))) {
      const size_t which = b->order == EMU_RANDOM ? emu_draw((uint32_t)b->idlers.size()) : 0;
      emu_make_ready(b->idlers[which]);
      b->idlers.erase(b->idlers.begin() + (ptrdiff_t)which);
      continue;
    }
    if (emu_something_happens() || emu_product_happens()) continue;
    if (!b->pollers.empty() && ++b->idle_rounds < 1000) {
      for (emu_fiber *f : b->pollers) emu_make_ready(f);
      b->pollers.clear();
      continue;
    }
    if (b->live == 0) return nullptr;
    emu_self = nullptr;
    fail_deadlock();
  }
}

static void switch_away() {
  emu_fiber *me = &emu_me();
  emu_fiber *next = pick();
  if (next == me) return;
  emu_self = next;
  if (next) {
    emu_switch(&me->sp, next->sp);
  } else {
    emu_switch(&me->sp, emu_now->main_sp);
  }
}

void emu_wait_for(emu_wait wait, const char *what, uint32_t at, uint32_t parity) {
  emu_fiber &me = emu_me();
  me.wait = wait;
  me.wait_what = what;
  me.wait_at = at;
  me.wait_parity = parity;
  me.warp->ready &= ~(1u << me.lane);
  if (!me.warp->ready) emu_now->ready_warps &= ~(1u << me.warp->id);
  switch_away();
}

void emu_maybe_yield() {
  if (emu_chance(8)) switch_away();
}

void emu_idle() {
  if (emu_now->order != EMU_LATE && !emu_chance(2)) return;
  emu_now->idlers.push_back(&emu_me());
  emu_wait_for(EMU_IDLES, "", 0, 0);
}

static void fiber_main() {
  (*emu_now->body)();
  emu_fiber &me = emu_me();
  uint64_t canary;
  memcpy(&canary, me.stack, 8);
  if (canary != CANARY) emu_fail("its local variables take more than %d bytes", STACK_STRIDE);
  if (--emu_now->live == 0) emu_end_copies();
  emu_wait_for(EMU_IS_THROUGH, "", 0, 0);
  __builtin_unreachable();
}

static void start_fiber(emu_fiber *f) {
  memcpy(f->stack, &CANARY, 8);
  uint64_t *top = (uint64_t *)((uintptr_t)(f->stack + STACK_STRIDE - 64) / 16 * 16);
  *--top = 0; /* where fiber_main would return to */
  *--top = (uint64_t)(uintptr_t)fiber_main;
  for (int i = 0; i < 6; i++) *--top = 0;
  f->sp = top;
}

void emu_run_block(emu_block *b, const char *kernel, emu_index grid, emu_index index, int threads,
                   uint32_t shared_bytes, emu_order order, uint64_t seed, const std::function<void()> &body) {
  install_fault_handler();
  if (!stacks) {
    void *memory = mmap(nullptr, (size_t)STACK_STRIDE * EMU_MAX_THREADS, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) emu_fail("no memory for stacks");
    stacks = (char *)memory;
  }
  emu_now = b;
  b->kernel = kernel;
  b->order = order;
  b->random = seed * 0x9e3779b97f4a7c15ull + 1;
  b->event_rate = 4u << emu_draw(14); /* a block of quick copies and slow products, another the other way round */
  b->product_rate = 4u << emu_draw(14);
  b->switch_rate = 4u << emu_draw(6);
  b->shared_bytes = shared_bytes;
  b->threads = threads;
  b->warps = (threads + EMU_WARP - 1) / EMU_WARP;
  b->live = threads;
  b->now = 0;
  b->body = &body;
  b->ready_warps = 0;
  b->idle_rounds = 0;
  b->products_waiting = 0;
  b->mbarriers.clear();
  b->events.clear();
  b->pollers.clear();
  b->idlers.clear();
  memset(b->writer, 0, sizeof b->writer);
  memset(smem, 0xff, shared_bytes);
  for (emu_named_bar &bar : b->bars) bar = emu_named_bar{};
  b->fibers.resize((size_t)threads);
  for (int g = 0; g < (threads + EMU_GROUP - 1) / EMU_GROUP; g++) {
    const int rest = threads - g * EMU_GROUP;
    b->group[g] = emu_group{};
    b->group[g].id = g;
    b->group[g].threads = rest < EMU_GROUP ? rest : EMU_GROUP;
  }
  for (int w = 0; w < b->warps; w++) {
    const int lanes = threads - w * EMU_WARP < EMU_WARP ? threads - w * EMU_WARP : EMU_WARP;
    b->warp[w] = emu_warp{};
    b->warp[w].id = w;
    if (order != EMU_EARLY) b->warp[w].rotation = order == EMU_LATE ? lanes - 1 : (int)emu_draw((uint32_t)lanes);
    b->warp[w].lanes = lanes == EMU_WARP ? 0xffffffffu : (1u << lanes) - 1;
  }
  for (int t = 0; t < threads; t++) {
    emu_fiber &f = b->fibers[(size_t)t];
    f.thread_index = {(uint32_t)t, 0, 0};
    f.block_index = index;
    f.block_size = {(uint32_t)threads, 1, 1};
    f.grid_size = grid;
    f.id = t;
    f.lane = t % EMU_WARP;
    f.warp = &b->warp[t / EMU_WARP];
    f.group = &b->group[t / EMU_GROUP];
    f.stack = stacks + (size_t)t * STACK_STRIDE;
    f.polls = 0;
    f.copies.clear();
    f.copy_groups = f.copies_gone = f.copies_told = 0;
    f.unfenced.clear();
    f.known.clear();
    start_fiber(&f);
    emu_make_ready(&f);
  }
  if (order != EMU_EARLY) b->now = order == EMU_LATE ? b->warps - 1 : (int)emu_draw((uint32_t)b->warps);
  emu_fiber *first = pick();
  emu_self = first;
  emu_switch(&b->main_sp, first->sp);
  emu_end_products();
  emu_self = nullptr;
  emu_now = nullptr;
}

/* ---- meetings --------------------------------------------------------------------------------- */

static bool meet(emu_meeting *meeting, int place, int size, const char *what, const void *args) {
  if (!meeting->what) {
    meeting->what = what;
  } else if (meeting->what != what && strcmp(meeting->what, what) != 0) {
    emu_fail("diverged: comes to %s while others of the %s are at %s", what, size == EMU_WARP ? "warp" : "warpgroup",
             meeting->what);
  }
  meeting->args[place] = args;
  return ++meeting->count == size;
}

static void all_go_on(emu_warp *warp) {
  for (int lane = 0; lane < EMU_WARP; lane++) {
    emu_now->fibers[(size_t)(warp->id * EMU_WARP + lane)].wait = EMU_RUNS;
  }
  warp->ready = 0xffffffffu;
  if (emu_now->order == EMU_RANDOM) warp->rotation = (int)emu_draw(EMU_WARP);
  emu_now->ready_warps |= 1u << warp->id;
}

void emu_meet_warp(const char *what, const void *args, void (*run)(const void *const *args)) {
  emu_fiber &me = emu_me();
  emu_meeting &meeting = me.warp->meeting;
  if (me.warp->lanes != 0xffffffffu) emu_fail("%s in a warp that is not whole", what);
  if (!meet(&meeting, me.lane, EMU_WARP, what, args)) {
    emu_wait_for(EMU_AT_WARP, what, 0, 0);
    return;
  }
  meeting.what = nullptr;
  meeting.count = 0;
  run(meeting.args);
  all_go_on(me.warp);
}

void emu_meet_group(const char *what, const void *args, void (*run)(const void *const *args)) {
  emu_fiber &me = emu_me();
  emu_meeting &meeting = me.group->meeting;
  if (me.group->threads != EMU_GROUP) emu_fail("%s in a warpgroup that is not whole", what);
  if (!meet(&meeting, me.id % EMU_GROUP, EMU_GROUP, what, args)) {
    emu_wait_for(EMU_AT_GROUP, what, 0, 0);
    return;
  }
  meeting.what = nullptr;
  meeting.count = 0;
  run(meeting.args);
  for (int w = 0; w < 4; w++) all_go_on(&emu_now->warp[me.group->id * 4 + w]);
}

static void check_mask(uint32_t mask, const char *what) {
  if (mask != 0xffffffffu) emu_fail("%s with mask %08x: only whole warps are emulated", what, mask);
}

struct shuffle_args {
  uint32_t value, from, *result;
};

uint32_t emu_shuffle(uint32_t mask, uint32_t value, uint32_t from_lane) {
  check_mask(mask, "shfl.sync");
  uint32_t result;
  const shuffle_args args = {value, from_lane, &result};
  emu_meet_warp("shfl.sync", &args, [](const void *const *all) {
    for (int lane = 0; lane < EMU_WARP; lane++) {
      const shuffle_args *mine = (const shuffle_args *)all[lane];
      *mine->result = ((const shuffle_args *)all[mine->from])->value;
    }
  });
  return result;
}

uint32_t emu_ballot(uint32_t mask, bool value) {
  check_mask(mask, "vote.sync");
  uint32_t result;
  const shuffle_args args = {value, 0, &result};
  emu_meet_warp("vote.sync", &args, [](const void *const *all) {
    uint32_t votes = 0;
    for (int lane = 0; lane < EMU_WARP; lane++) votes |= ((const shuffle_args *)all[lane])->value << lane;
    for (int lane = 0; lane < EMU_WARP; lane++) *((const shuffle_args *)all[lane])->result = votes;
  });
  return result;
}

void emu_syncwarp(uint32_t mask) {
  check_mask(mask, "bar.warp.sync");
  emu_meet_warp("bar.warp.sync", nullptr, [](const void *const *) {});
}

int64_t emu_clock() {
  static std::atomic<int64_t> clock(1);
  return clock++;
}

void emu_setmaxnreg(int registers) {
  if (registers < 24 || registers > 256 || registers % 8 != 0) {
    emu_fail("setmaxnreg: found %d, allowed multiples of 8 from 24 to 256", registers);
  }
  struct args {
    int registers;
  };
  const args mine = {registers};
  emu_meet_group("setmaxnreg", &mine, [](const void *const *all) {
    emu_group *group = emu_me().group;
    group->registers = ((const args *)all[0])->registers;
    int sum = 0;
    for (int g = 0; g < emu_now->warps / 4; g++) sum += emu_now->group[g].registers;
    if (sum * EMU_GROUP > 65536)
      emu_fail("setmaxnreg: the warpgroups' registers come to %d a multiprocessor", sum * 128);
  });
}
