/* Every kernel of the CUDA backend, in one list: a row each. Whoever needs to know reads it here:
 *
 *   plan/kernels.c                              the registry: what a kernel accepts, its tiles, its shared memory
 *   plan/portable.h, hopper.h, hopper_wide.h    the constants that a kernel is compiled with
 *   cmake/EaKernelList.cmake                    what nvcc compiles, what the library embeds, what is emulated
 *   tests/gpu/check_cubins.py                   what the compiled kernels are held to
 *
 * A row stands on a line of its own: NAME(...), no comment behind it, for those that are no C compilers. */
#ifndef EA_PLAN_KERNEL_LIST_H
#define EA_PLAN_KERNEL_LIST_H

/* Which calls a kernel is for: those whose scores and values go as they are, those where a scale of the cache, a cap or
 * a temperature changes them, or any. */
typedef enum ea_hopper_calls { EA_CALLS_PLAIN, EA_CALLS_SCALED, EA_CALLS_ANY } ea_hopper_calls;

/* EA_KERNELS(HOPPER, HOPPER_WIDE, PORTABLE, OTHER) expands each row by its kind's macro. Of a family, a problem takes
 * the first row that accepts it.
 *
 * Columns of every row: name; source in src/cuda/kernels; architectures it is compiled for ("all": each that the build
 * knows). Those of the attention kernels, which exist for bf16 and f16 under the names FAMILY_NAME_TYPE, go on with the
 * largest head dimensions of Q and K (D) and of V (Dv), and then
 *
 *   HOPPER: consumer warpgroups of 64 rows; keys a tile (N); registers of a consumer thread, of a producer thread;
 *     longest window (0: none, and with any); calls. A row with a window is for calls with one up to that long: what is
 *     masked is masked in narrower tiles. Calls have kernels apart where that is worth their compilation: short ones
 *     wait for instructions to be fetched (docs/hopper.md, "Short calls")
 *   HOPPER_WIDE: latent: the values are K's first columns; slices a unit; registers as above
 *   PORTABLE: rows (M); keys a tile (N); warps over (rows, keys) for the scores, over (rows, columns) for the output;
 *     blocks a multiprocessor, which the registers are held to. The small tiles are for architectures with less than
 *     164 KiB of shared memory a block: sm_86 and sm_89 (which run sm_80's images), sm_120
 *   OTHER: what the source is compiled with beside its name */
#define EA_KERNELS(HOPPER, HOPPER_WIDE, PORTABLE, OTHER)                                                               \
  HOPPER(d64, "hopper/d64_256.cu", "sm_90a", 64, 64, 3, 96, 160, 32, 0, EA_CALLS_PLAIN)                                \
  HOPPER(d64s, "hopper/d64_256.cu", "sm_90a", 64, 64, 3, 96, 160, 32, 0, EA_CALLS_SCALED)                              \
  HOPPER(d96, "hopper/d64_256.cu", "sm_90a", 96, 96, 2, 128, 232, 40, 0, EA_CALLS_ANY)                                 \
  HOPPER(d128, "hopper/d64_256.cu", "sm_90a", 128, 128, 2, 128, 232, 40, 0, EA_CALLS_PLAIN)                            \
  HOPPER(d128s, "hopper/d64_256.cu", "sm_90a", 128, 128, 2, 128, 232, 40, 0, EA_CALLS_SCALED)                          \
  HOPPER(d192x128, "hopper/d64_256.cu", "sm_90a", 192, 128, 2, 128, 232, 40, 0, EA_CALLS_PLAIN)                        \
  HOPPER(d192x128s, "hopper/d64_256.cu", "sm_90a", 192, 128, 2, 128, 232, 40, 0, EA_CALLS_SCALED)                      \
  HOPPER(d192, "hopper/d64_256.cu", "sm_90a", 192, 192, 2, 96, 232, 40, 0, EA_CALLS_ANY)                               \
  HOPPER(d256w, "hopper/d64_256.cu", "sm_90a", 256, 256, 2, 64, 232, 40, 4096, EA_CALLS_ANY)                           \
  HOPPER(d256, "hopper/d64_256.cu", "sm_90a", 256, 256, 2, 80, 232, 40, 0, EA_CALLS_ANY)                               \
  HOPPER_WIDE(d512, "hopper/d512.cu", "sm_90a", 512, 512, 0, 2, 216, 72)                                               \
  HOPPER_WIDE(d576x512, "hopper/mla.cu", "sm_90a", 576, 512, 1, 1, 224, 56)                                            \
  PORTABLE(d64, "portable.cu", "all", 64, 64, 128, 64, 4, 1, 4, 1, 3)                                                  \
  PORTABLE(d128, "portable.cu", "sm_80 sm_90a sm_100", 128, 128, 128, 64, 4, 1, 4, 1, 2)                               \
  PORTABLE(d192x128, "portable.cu", "sm_80 sm_90a sm_100", 192, 128, 128, 64, 4, 2, 4, 2, 1)                           \
  PORTABLE(d256, "portable.cu", "sm_80 sm_90a sm_100", 256, 256, 128, 64, 4, 2, 4, 2, 1)                               \
  PORTABLE(d320x256, "portable.cu", "sm_80 sm_90a sm_100", 320, 256, 128, 32, 4, 2, 4, 2, 1)                           \
  PORTABLE(d512, "portable.cu", "sm_80 sm_90a sm_100", 512, 512, 64, 32, 4, 2, 2, 4, 1)                                \
  PORTABLE(d576x512, "portable.cu", "sm_80 sm_90a sm_100", 576, 512, 64, 32, 4, 2, 2, 4, 1)                            \
  PORTABLE(d576, "portable.cu", "sm_80 sm_90a sm_100", 576, 576, 64, 32, 4, 2, 2, 4, 1)                                \
  PORTABLE(d128_small, "portable.cu", "sm_80 sm_120", 128, 128, 128, 32, 4, 1, 4, 1, 1)                                \
  PORTABLE(d256_small, "portable.cu", "sm_80 sm_120", 256, 256, 64, 32, 4, 1, 4, 1, 1)                                 \
  PORTABLE(d576_small, "portable.cu", "sm_80 sm_120", 576, 576, 32, 16, 2, 2, 1, 4, 1)                                 \
  OTHER(schedule, "schedule.cu", "sm_90a", "")                                                                         \
  OTHER(stage, "stage.cu", "sm_90a", "")                                                                               \
  OTHER(validate, "validate.cu", "all", "")                                                                            \
  OTHER(merge_f32, "merge.cu", "all", "EA_MERGE_TYPE=float")                                                           \
  OTHER(merge_f16, "merge.cu", "all", "EA_MERGE_TYPE=__half")                                                          \
  OTHER(merge_bf16, "merge.cu", "all", "EA_MERGE_TYPE=__nv_bfloat16")

#define EA_NO_ROW(...) /* for the kinds of rows that one does not ask for */

#endif
