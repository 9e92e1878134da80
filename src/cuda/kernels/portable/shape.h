/* A shape of plan/portable.h as a type, with what follows from it: every function of the kernel is a template over it.
 * ea_shape_d64 and so on. */
#ifndef EA_CUDA_KERNELS_PORTABLE_SHAPE_H
#define EA_CUDA_KERNELS_PORTABLE_SHAPE_H

#include "cuda/kernels/ptx.h"
#include "plan/portable.h"

template <int D, int DV, int M, int N, int QM, int QN, int PM, int PN, int BLOCKS> struct ea_shape {
  static constexpr int DIM = D, DIM_V = DV, TILE_M = M, TILE_N = N;
  static constexpr int QK_WARPS_M = QM, QK_WARPS_N = QN, PV_WARPS_M = PM, PV_WARPS_N = PN;
  static constexpr int MIN_BLOCKS = BLOCKS;
  static constexpr int THREADS = QM * QN * 32;

  /* A warp's tile of the scores: QK_ROWS x QK_KEYS in fragments of 16 x 8. */
  static constexpr int QK_ROWS = M / QM, QK_KEYS = N / QN, QK_MI = QK_ROWS / 16, QK_NI = QK_KEYS / 8;
  /* A warp's tile of the output: PV_ROWS x PV_COLS. */
  static constexpr int PV_ROWS = M / PM, PV_COLS = DV / PN, PV_MI = PV_ROWS / 16, PV_NI = PV_COLS / 8;

  /* Whether a row's scores are spread over warps: then maxima and P cross among them through shared memory, else P
   * stays in registers. */
  static constexpr bool CROSSING = QN > 1;
  /* The warps that share PV_ROWS rows: scores and probabilities cross among these only, so that
   * one group's softmax can run beside another's products. */
  static constexpr int GROUP_WARPS = PN;
  /* Few enough to stay in registers over the whole mainloop. */
  static constexpr bool Q_IN_REGISTERS = D <= 64 && BLOCKS < 3;

  /* A tile is copied in passes, eight threads a row. */
  static constexpr int PASS_ROWS = THREADS / 8, PASSES = N / PASS_ROWS;

  static_assert(M % (16 * QM) == 0 && N % (8 * QN) == 0, "whole score fragments");
  static_assert(M % (16 * PM) == 0 && DV % (8 * PN) == 0, "whole output fragments");
  static_assert(QM * QN == PM * PN, "the same warps do both products");
  static_assert(D % 64 == 0 && DV % 64 == 0 && D >= DV && N % 16 == 0, "the swizzle's and mma's units");
  static_assert(!CROSSING || QN * (PV_ROWS / QK_ROWS) == GROUP_WARPS, "a group's scores are its own");
  static_assert(QK_NI % 2 == 0 || QK_NI == 1, "keys of a warp come by 16, or there are 8");
  static_assert(PV_COLS % 16 == 0, "output columns come by 16");
  static_assert(PASS_ROWS % 8 == 0 && N % PASS_ROWS == 0, "a tile is copied in whole passes");
  static_assert(2 * N <= THREADS, "one thread finds the address of one row");
};

#define EA_SHAPE_TYPE(name, source, archs, ...) using ea_shape_##name = ea_shape<__VA_ARGS__>;
EA_KERNELS(EA_NO_ROW, EA_NO_ROW, EA_SHAPE_TYPE, EA_NO_ROW)
#undef EA_SHAPE_TYPE

/* The shape as the planner has it. */
template <class Shape> EA_DEVICE ea_portable_shape planned_shape(void) {
  const ea_portable_shape shape = {0,
                                   Shape::DIM,
                                   Shape::DIM_V,
                                   Shape::TILE_M,
                                   Shape::TILE_N,
                                   Shape::QK_WARPS_M,
                                   Shape::QK_WARPS_N,
                                   Shape::PV_WARPS_M,
                                   Shape::PV_WARPS_N,
                                   Shape::MIN_BLOCKS};
  return shape;
}

#endif
