/* Inside the emulator: a block of threads, each a fiber of one worker. Fibers run until they have
 * to wait, so nothing here needs a lock; a fiber switch is where another thread of the block may
 * come first. What is asynchronous on the card (copies, products) happens at a time that `order`
 * chooses among those that the card may choose. */
#ifndef EA_EMULATOR_BLOCK_H
#define EA_EMULATOR_BLOCK_H

#include <deque>
#include <functional>
#include <memory>
#include <stdint.h>
#include <unordered_map>
#include <vector>

#include "emulated.h"

#define EMU_WARP 32
#define EMU_GROUP 128 /* threads of a warpgroup */
#define EMU_MAX_THREADS 1024
#define EMU_MAX_WARPS (EMU_MAX_THREADS / EMU_WARP)
#define EMU_SHARED_BASE 1024u    /* first shared-memory address: 1024-byte aligned and not 0 */
#define EMU_SHARED_BYTES 232448u /* of sm_90, the most there is */
#define EMU_UNIT 16              /* bytes: shared memory's grain for who wrote it how */

enum emu_order { EMU_EARLY, EMU_LATE, EMU_RANDOM };

enum emu_wait {
  EMU_RUNS,
  EMU_AT_MBARRIER,
  EMU_AT_BAR,
  EMU_POLLS,     /* has asked a barrier again and again */
  EMU_IDLES,     /* for something of its own that takes long */
  EMU_AT_WARP,   /* for the other lanes */
  EMU_AT_GROUP,  /* for the other threads of the warpgroup */
  EMU_IS_THROUGH /* has left the kernel */
};

struct emu_warp;
struct emu_group;

/* Units that cp.async wrote whose arrival ended a phase of an mbarrier, and their writers' marks. */
struct emu_arrived {
  uint16_t unit, mark;
};
typedef std::vector<emu_arrived> emu_arrivals;

struct emu_copy { /* a cp.async */
  uint32_t dst, bytes;
  const void *src;
  int64_t group; /* number of its group; INT64_MAX: not committed */
  bool done;
};

struct emu_fiber : emu_thread {
  int id, lane;
  emu_warp *warp;
  emu_group *group;
  void *sp;
  char *stack;
  /* what it waits for */
  emu_wait wait;
  const char *wait_what;
  uint32_t wait_at, wait_parity;
  bool voted; /* the answer of the barrier it was at */
  int polls;
  /* its cp.async that it has not waited for, oldest first */
  std::deque<emu_copy> copies;
  int64_t copy_groups; /* committed */
  int64_t copies_gone; /* taken off the front so far */
  int64_t copies_told; /* up to which an mbarrier hears of them */
  /* units that it wrote by plain stores or cp.async and has not fenced */
  std::vector<uint16_t> unfenced;
  /* and those by others' cp.async that it knows to have arrived, by waiting for their mbarriers */
  std::vector<std::shared_ptr<emu_arrivals>> known;
};

/* Lanes (or threads of a warpgroup) that have come to an instruction which all execute together. */
struct emu_meeting {
  const char *what; /* NULL: nobody */
  int count;
  const void *args[EMU_GROUP];
};

struct emu_warp {
  int id;
  uint32_t ready; /* lanes */
  uint32_t lanes; /* that exist */
  int rotation;   /* where the choice among ready lanes begins */
  emu_meeting meeting;
};

struct emu_product; /* products.cpp */
struct emu_accumulator;

struct emu_group {
  int id, threads;
  emu_meeting meeting;
  std::deque<emu_product *> products;
  std::vector<emu_accumulator *> accumulators;
  int64_t product_groups; /* committed */
  bool fenced;
  int registers; /* what setmaxnreg asked for last */
};

struct emu_named_bar { /* a named barrier */
  int expected, arrived;
  bool vote;
  std::vector<emu_fiber *> waiting, passed_by; /* bar.sync, bar.arrive */
};

struct emu_mbarrier {
  int64_t expected, pending, tx;
  uint32_t phase;
  std::vector<emu_fiber *> waiting;
  std::shared_ptr<emu_arrivals> now, before; /* of this phase and of the one before; NULL: none */
};

struct emu_event { /* something asynchronous that has not happened */
  bool is_tma;
  uint32_t barrier;
  /* tma */
  uint32_t dst;
  uint64_t map[16];
  int32_t at[5];
  int rank;
  /* cp.async.mbarrier.arrive.noinc: when the fiber's copies up to this number are done */
  emu_fiber *fiber;
  int64_t upto;
  std::shared_ptr<emu_arrivals> units; /* those that no earlier arrival stands for */
};

struct emu_block {
  const char *kernel;
  emu_order order;
  uint64_t random;
  uint32_t event_rate, product_rate, switch_rate; /* at random order: one in so many; drawn for each block */
  uint32_t shared_bytes;
  int threads, warps, live;
  int now; /* warp that runs */
  uint32_t ready_warps;
  void *main_sp;
  std::vector<emu_fiber> fibers;
  emu_warp warp[EMU_MAX_WARPS];
  emu_group group[EMU_MAX_WARPS / 4];
  emu_named_bar bars[16];
  std::unordered_map<uint32_t, emu_mbarrier> mbarriers;
  std::deque<emu_event> events;
  std::vector<emu_fiber *> pollers;
  std::deque<emu_fiber *> idlers;
  int idle_rounds;
  int products_waiting;                         /* issued and not executed, of all groups */
  uint16_t writer[EMU_SHARED_BYTES / EMU_UNIT]; /* thread + 1 whose generic write of a unit is not fenced */
  const std::function<void()> *body;
};

extern __thread emu_block *emu_now __attribute__((tls_model("initial-exec")));
static inline emu_fiber &emu_me() {
  return *(emu_fiber *)emu_self;
}

/* One line that names kernel, block and thread; ends the process. */
[[noreturn]] void emu_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- block.cpp ---- */
void emu_run_block(emu_block *block, const char *kernel, emu_index grid, emu_index index, int threads,
                   uint32_t shared_bytes, emu_order order, uint64_t seed, const std::function<void()> &body);
void emu_wait_for(emu_wait wait, const char *what, uint32_t at, uint32_t parity);
void emu_make_ready(emu_fiber *fiber);
void emu_maybe_yield(); /* at random order, now and then */
void emu_idle();        /* at late order until nobody else can go on, at random order now and then */
uint64_t emu_draw(uint32_t below);
bool emu_chance(uint32_t one_in); /* never, but at random order */
/* The last to come executes `run` on everybody's arguments; then all go on. */
void emu_meet_warp(const char *what, const void *args, void (*run)(const void *const *args));
void emu_meet_group(const char *what, const void *args, void (*run)(const void *const *args));

/* ---- copies.cpp ---- */
bool emu_something_happens(); /* one event of block->events; false: there is none */
void emu_end_copies();        /* at a block's end nothing may be left */
void emu_shared_check(uint32_t address, uint32_t bytes, const char *what);
char *emu_shared_at(uint32_t address);
uint32_t emu_swizzle_128(uint32_t address);
void emu_mbarrier_complete_tx(uint32_t barrier, uint32_t bytes);

/* ---- products.cpp ---- */
bool emu_product_happens(); /* executes one product of some warpgroup */
void emu_end_products();

#endif
