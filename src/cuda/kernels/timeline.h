/* What a launch of a Hopper kernel leaves behind when it records its times: a block's header and the marks of its
 * warps. Kernels write it (marks.h) in a build with EA_TRACE; cuda/recording.h brings it to the host.
 *
 * A mark says what a warp does from then on, until its next one, so a track of them has neither gaps nor overlaps. */
#ifndef EA_CUDA_KERNELS_TIMELINE_H
#define EA_CUDA_KERNELS_TIMELINE_H

#include <stdint.h>

/*  kind, what the warp does, whether a tile's number is said with it
 *
 * Of the producer, then of consumers, then the track's end. ITEM_... tell of the work tile that was found, a number in
 * place of the tile's, and nothing of what the warp does. */
#define EA_MARKS(X)                                                                                                    \
  X(NONE, "", false)                                                                                                   \
  X(FIND, "find work tile", false) /* looks for work */                                                                \
  X(MEET, "meet", false)           /* waits for its other threads */                                                   \
  X(SLOT_Q, "wait Q free", false)  /* for consumers to be done with the work tile before */                            \
  X(COPY_Q, "copy Q", false)       /* asks for the copy, or does it */                                                 \
  X(SLOT_K, "wait K free", true)   /* for a stage of the ring */                                                       \
  X(COPY_K, "copy K", true)                                                                                            \
  X(SLOT_V, "wait V free", true)                                                                                       \
  X(COPY_V, "copy V", true)                                                                                            \
  X(WAIT_Q, "wait Q", false) /* for a work tile and its queries */                                                     \
  X(BEGIN, "begin work tile", false)                                                                                   \
  X(WAIT_TURN, "wait turn", true) /* to issue */                                                                       \
  X(WAIT_K, "wait K", true)                                                                                            \
  X(ISSUE_S, "issue S", true) /* the score product; meanwhile O may be multiplied */                                   \
  X(WAIT_S, "wait S", true)                                                                                            \
  X(SOFTMAX, "softmax", true) /* mask, exponentials, sums, rounding */                                                 \
  X(WAIT_V, "wait V", true)                                                                                            \
  X(ISSUE_O, "issue O", true) /* the product of the probabilities with V */                                            \
  X(WAIT_O, "wait O", true)                                                                                            \
  X(WAIT_MAX, "wait maxima", false) /* for the other consumer's, in hopper/d512.cu */                                  \
  X(WAIT_P, "wait P", true)         /* likewise its probabilities */                                                   \
  X(FINISH, "write out", false)                                                                                        \
  X(END, "", false)                                                                                                    \
  X(ITEM_TOKEN, "token", false) /* the first query's row in q */                                                       \
  X(ITEM_ROWS, "rows", false)   /* queries x heads */                                                                  \
  X(ITEM_HEAD, "kv_head", false)                                                                                       \
  X(ITEM_FIRST, "first_step", false)  /* of its walk: tiles; of wide heads: pairs of tiles */                          \
  X(ITEM_GATHER, "gather_end", false) /* steps before this one are gathered or come as runs of slots */                \
  X(ITEM_END, "end_step", false)

typedef enum ea_mark_kind {
#define EA_MARK_ENUM(kind, name, of_tile) EA_MARK_##kind,
  EA_MARKS(EA_MARK_ENUM)
#undef EA_MARK_ENUM
      EA_NUM_MARK_KINDS
} ea_mark_kind;

typedef struct ea_mark {
  uint32_t clock; /* of the multiprocessor, the low half */
  uint32_t what;  /* kind << EA_MARK_TILE_BITS | tile; 0: no mark */
} ea_mark;

#define EA_MARK_TILE_BITS 26

/* Tracks of a block: warps of the producer, then the first warp of each consumer. */
#define EA_MARK_PRODUCERS 4
#define EA_MARK_TRACKS 8

typedef struct ea_marked_block {
  int64_t begin_clock, end_clock; /* of its multiprocessor: cycles */
  int64_t begin_ns, end_ns;       /* at the same times, of the whole GPU (%globaltimer) */
  uint32_t multiprocessor;
  uint32_t dropped[EA_MARK_TRACKS]; /* marks that found no room */
  uint32_t unused;
} ea_marked_block;

/* Where a launch records: headers of `blocks` blocks, behind them marks[blocks][EA_MARK_TRACKS][records]. Zeroed
 * before, and a track's last record stays zero. */
typedef struct ea_marks_place {
  ea_marked_block *timeline; /* NULL: nothing is recorded */
  int32_t blocks;            /* the grid's first so many */
  int32_t records_log2;      /* of a track */
} ea_marks_place;

#endif
