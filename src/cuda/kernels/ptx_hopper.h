/* Thin wrappers over the PTX instructions that only sm_90a has, by the instruction's own name:
 * the tensor memory accelerator's copies, warpgroup products, register reallocation. */
#ifndef EA_CUDA_KERNELS_PTX_HOPPER_H
#define EA_CUDA_KERNELS_PTX_HOPPER_H

#include "cuda/kernels/ptx.h"
#include "cuda/kernels/tensor_map.h"

/* ---- bulk tensor copies, global to shared (they count their bytes against an mbarrier) ---- */

EA_DEVICE void tensor_map_prefetch(const ea_tensor_map *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* The box of the map whose first element is (c0, c1, c2), c0 fastest; what lies outside the tensor
 * arrives as zeros and counts like the rest. dst: 1024-byte aligned for the 128-byte swizzle. */
EA_DEVICE void tma_load_3d(uint32_t dst, const ea_tensor_map *map, uint32_t barrier, int32_t c0, int32_t c1,
                           int32_t c2) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
               "[%2];" ::"r"(dst),
               "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
EA_DEVICE void tma_load_4d(uint32_t dst, const ea_tensor_map *map, uint32_t barrier, int32_t c0, int32_t c1, int32_t c2,
                           int32_t c3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
               "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst),
               "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
/* The same box, to L2 only. */
EA_DEVICE void tma_prefetch_3d(const ea_tensor_map *map, int32_t c0, int32_t c1, int32_t c2) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(map), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
/* One arrival, and the phase also waits for this many bytes. */
EA_DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;}" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/* Whether the phase with this parity has ended. Does not wait. */
EA_DEVICE bool mbarrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{.reg .pred p;\n"
               "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
               "selp.u32 %0, 1, 0, p;}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
/* Makes mbarrier_init visible to the bulk copies. */
EA_DEVICE void fence_mbarrier_init(void) {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* Orders this thread's plain accesses of shared memory with those of bulk copies and warpgroup products. */
EA_DEVICE void fence_proxy_async_shared(void) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* True in one lane of a whole warp. */
EA_DEVICE bool elect_one(void) {
  uint32_t elected;
  asm volatile("{.reg .pred p;\n"
               "elect.sync _|p, 0xffffffff;\n"
               "selp.u32 %0, 1, 0, p;}"
               : "=r"(elected));
  return elected != 0;
}

/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. */
EA_DEVICE void stmatrix_x4(uint32_t address, const uint32_t r[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

/* ---- groups of cp.async --------------------------------------------------------------- */

EA_DEVICE void cp_async_commit_group(void) {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits for all but the newest `newest` groups of this thread. */
#define cp_async_wait_group(newest) asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory")

/* ---- barriers ----------------------------------------------------------------------------- */

/* Arrives at barrier `id` for `threads` threads without waiting. */
EA_DEVICE void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* bar_sync that also tells whether any thread brought true. */
EA_DEVICE bool bar_red_or(int id, int threads, bool value) {
  uint32_t any;
  asm volatile("{.reg .pred p, q;\n"
               "setp.ne.u32 p, %1, 0;\n"
               "bar.red.or.pred q, %2, %3, p;\n"
               "selp.u32 %0, 1, 0, q;}"
               : "=r"(any)
               : "r"((uint32_t)value), "r"(id), "r"(threads)
               : "memory");
  return any != 0;
}

/* ---- registers -------------------------------------------------------------------------- */

/* The whole warpgroup gives registers back, or takes more (waiting until there are as many). */
#define setmaxnreg_dec(registers) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)(registers)))
#define setmaxnreg_inc(registers) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)(registers)))

/* ---- products of a warpgroup ------------------------------------------------------------- */

/* Before the first product after other instructions wrote its accumulators or register operands. */
EA_DEVICE void wgmma_fence(void) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
EA_DEVICE void wgmma_commit_group(void) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits for all but the newest `newest` groups. */
#define wgmma_wait_group(newest) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newest) : "memory")

/* Products write their accumulators behind the compiler's back: it may neither keep older values of them
 * nor use them early. Before the products, and after the wait. */
EA_DEVICE void wgmma_settle(float *d, int n) {
#pragma unroll
  for (int i = 0; i < n; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* A copy that stays behind the wait for the products that read `to`. */
EA_DEVICE void wgmma_refill(uint32_t *to, const uint32_t *from, int n) {
#pragma unroll
  for (int i = 0; i < n; i++) asm volatile("mov.b32 %0, %1;" : "=r"(to[i]) : "r"(from[i]) : "memory");
}

/* A matrix in shared memory under the 128-byte swizzle: rows of 64 16-bit elements, eight rows
 * 1024 bytes. leading: bytes from one 64-column slice to the next, looked at only where the
 * product's n runs along the columns. */
EA_DEVICE uint64_t wgmma_descriptor(uint32_t address, uint32_t leading) {
  return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
         (uint64_t)1 << 62;
}
/* Bytes further along a descriptor's address. */
EA_DEVICE uint64_t wgmma_advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

/* d (64 x n, f32) = a (64 x 16) . b (16 x n) [+ d where accumulate is not 0].
 * wgmma_nN_ss_T: a and b by descriptor, k along the columns of both (scores = Q K^T).
 * wgmma_nN_rs_T: a in registers, b by descriptor with n along its columns (output = P V).
 * wgmma_nN_st_T: the same with a by descriptor, k along its columns.
 * Lane l of warp w holds, of each 8 columns j, rows 16w + l/4 (d[4j], d[4j+1]) and that + 8 (d[4j+2],
 * d[4j+3]), columns 8j + 2(l mod 4) and + 1; a likewise with two columns a register. */
#define EA_F8(d, i)                                                                                                    \
  "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]), "+f"((d)[i + 5]),              \
      "+f"((d)[i + 6]), "+f"((d)[i + 7])
#define EA_WGMMA_LIST_64                                                                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, "                                                                                   \
  "%8, %9, %10, %11, %12, %13, %14, %15, "                                                                             \
  "%16, %17, %18, %19, %20, %21, %22, %23, "                                                                           \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define EA_WGMMA_D_64(d) EA_F8(d, 0), EA_F8(d, 8), EA_F8(d, 16), EA_F8(d, 24)
#define EA_WGMMA_LIST_80                                                                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, "                                                                                   \
  "%8, %9, %10, %11, %12, %13, %14, %15, "                                                                             \
  "%16, %17, %18, %19, %20, %21, %22, %23, "                                                                           \
  "%24, %25, %26, %27, %28, %29, %30, %31, "                                                                           \
  "%32, %33, %34, %35, %36, %37, %38, %39"
#define EA_WGMMA_D_80(d) EA_F8(d, 0), EA_F8(d, 8), EA_F8(d, 16), EA_F8(d, 24), EA_F8(d, 32)
#define EA_WGMMA_LIST_96                                                                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, "                                                                                   \
  "%8, %9, %10, %11, %12, %13, %14, %15, "                                                                             \
  "%16, %17, %18, %19, %20, %21, %22, %23, "                                                                           \
  "%24, %25, %26, %27, %28, %29, %30, %31, "                                                                           \
  "%32, %33, %34, %35, %36, %37, %38, %39, "                                                                           \
  "%40, %41, %42, %43, %44, %45, %46, %47"
#define EA_WGMMA_D_96(d) EA_F8(d, 0), EA_F8(d, 8), EA_F8(d, 16), EA_F8(d, 24), EA_F8(d, 32), EA_F8(d, 40)
#define EA_WGMMA_LIST_112                                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, "                                                                                   \
  "%8, %9, %10, %11, %12, %13, %14, %15, "                                                                             \
  "%16, %17, %18, %19, %20, %21, %22, %23, "                                                                           \
  "%24, %25, %26, %27, %28, %29, %30, %31, "                                                                           \
  "%32, %33, %34, %35, %36, %37, %38, %39, "                                                                           \
  "%40, %41, %42, %43, %44, %45, %46, %47, "                                                                           \
  "%48, %49, %50, %51, %52, %53, %54, %55"
#define EA_WGMMA_D_112(d) EA_F8(d, 0), EA_F8(d, 8), EA_F8(d, 16), EA_F8(d, 24), EA_F8(d, 32), EA_F8(d, 40), EA_F8(d, 48)
#define EA_WGMMA_LIST_128                                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, "                                                                                   \
  "%8, %9, %10, %11, %12, %13, %14, %15, "                                                                             \
  "%16, %17, %18, %19, %20, %21, %22, %23, "                                                                           \
  "%24, %25, %26, %27, %28, %29, %30, %31, "                                                                           \
  "%32, %33, %34, %35, %36, %37, %38, %39, "                                                                           \
  "%40, %41, %42, %43, %44, %45, %46, %47, "                                                                           \
  "%48, %49, %50, %51, %52, %53, %54, %55, "                                                                           \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define EA_WGMMA_D_128(d)                                                                                              \
  EA_F8(d, 0), EA_F8(d, 8), EA_F8(d, 16), EA_F8(d, 24), EA_F8(d, 32), EA_F8(d, 40), EA_F8(d, 48), EA_F8(d, 56)
#define EA_WGMMA_LIST_192                                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, "                                                                                   \
  "%8, %9, %10, %11, %12, %13, %14, %15, "                                                                             \
  "%16, %17, %18, %19, %20, %21, %22, %23, "                                                                           \
  "%24, %25, %26, %27, %28, %29, %30, %31, "                                                                           \
  "%32, %33, %34, %35, %36, %37, %38, %39, "                                                                           \
  "%40, %41, %42, %43, %44, %45, %46, %47, "                                                                           \
  "%48, %49, %50, %51, %52, %53, %54, %55, "                                                                           \
  "%56, %57, %58, %59, %60, %61, %62, %63, "                                                                           \
  "%64, %65, %66, %67, %68, %69, %70, %71, "                                                                           \
  "%72, %73, %74, %75, %76, %77, %78, %79, "                                                                           \
  "%80, %81, %82, %83, %84, %85, %86, %87, "                                                                           \
  "%88, %89, %90, %91, %92, %93, %94, %95"
#define EA_WGMMA_D_192(d)                                                                                              \
  EA_F8(d, 0), EA_F8(d, 8), EA_F8(d, 16), EA_F8(d, 24), EA_F8(d, 32), EA_F8(d, 40), EA_F8(d, 48), EA_F8(d, 56),        \
      EA_F8(d, 64), EA_F8(d, 72), EA_F8(d, 80), EA_F8(d, 88)
#define EA_WGMMA_LIST_256                                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, "                                                                                   \
  "%8, %9, %10, %11, %12, %13, %14, %15, "                                                                             \
  "%16, %17, %18, %19, %20, %21, %22, %23, "                                                                           \
  "%24, %25, %26, %27, %28, %29, %30, %31, "                                                                           \
  "%32, %33, %34, %35, %36, %37, %38, %39, "                                                                           \
  "%40, %41, %42, %43, %44, %45, %46, %47, "                                                                           \
  "%48, %49, %50, %51, %52, %53, %54, %55, "                                                                           \
  "%56, %57, %58, %59, %60, %61, %62, %63, "                                                                           \
  "%64, %65, %66, %67, %68, %69, %70, %71, "                                                                           \
  "%72, %73, %74, %75, %76, %77, %78, %79, "                                                                           \
  "%80, %81, %82, %83, %84, %85, %86, %87, "                                                                           \
  "%88, %89, %90, %91, %92, %93, %94, %95, "                                                                           \
  "%96, %97, %98, %99, %100, %101, %102, %103, "                                                                       \
  "%104, %105, %106, %107, %108, %109, %110, %111, "                                                                   \
  "%112, %113, %114, %115, %116, %117, %118, %119, "                                                                   \
  "%120, %121, %122, %123, %124, %125, %126, %127"
#define EA_WGMMA_D_256(d)                                                                                              \
  EA_F8(d, 0), EA_F8(d, 8), EA_F8(d, 16), EA_F8(d, 24), EA_F8(d, 32), EA_F8(d, 40), EA_F8(d, 48), EA_F8(d, 56),        \
      EA_F8(d, 64), EA_F8(d, 72), EA_F8(d, 80), EA_F8(d, 88), EA_F8(d, 96), EA_F8(d, 104), EA_F8(d, 112),              \
      EA_F8(d, 120)

#define EA_WGMMA(n, type, i0, i1, i2, i3, i4, i5)                                                                      \
  EA_DEVICE void wgmma_n##n##_ss_##type(float d[n / 2], uint64_t a, uint64_t b, int accumulate) {                      \
    asm volatile("{.reg .pred p;\n"                                                                                    \
                 "setp.ne.b32 p, %" #i2 ", 0;\n"                                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" EA_WGMMA_LIST_##n              \
                 "}, %" #i0 ", %" #i1 ", p, 1, 1, 0, 0;}"                                                              \
                 : EA_WGMMA_D_##n(d)                                                                                   \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                   \
  }                                                                                                                    \
  EA_DEVICE void wgmma_n##n##_st_##type(float d[n / 2], uint64_t a, uint64_t b, int accumulate) {                      \
    asm volatile("{.reg .pred p;\n"                                                                                    \
                 "setp.ne.b32 p, %" #i2 ", 0;\n"                                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" EA_WGMMA_LIST_##n              \
                 "}, %" #i0 ", %" #i1 ", p, 1, 1, 0, 1;}"                                                              \
                 : EA_WGMMA_D_##n(d)                                                                                   \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                   \
  }                                                                                                                    \
  EA_DEVICE void wgmma_n##n##_rs_##type(float d[n / 2], const uint32_t a[4], uint64_t b, int accumulate) {             \
    asm volatile("{.reg .pred p;\n"                                                                                    \
                 "setp.ne.b32 p, %" #i5 ", 0;\n"                                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" EA_WGMMA_LIST_##n              \
                 "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1, 1;}"                                 \
                 : EA_WGMMA_D_##n(d)                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                               \
  }
EA_WGMMA(64, bf16, 32, 33, 34, 35, 36, 37)
EA_WGMMA(64, f16, 32, 33, 34, 35, 36, 37)
EA_WGMMA(80, bf16, 40, 41, 42, 43, 44, 45)
EA_WGMMA(80, f16, 40, 41, 42, 43, 44, 45)
EA_WGMMA(96, bf16, 48, 49, 50, 51, 52, 53)
EA_WGMMA(96, f16, 48, 49, 50, 51, 52, 53)
EA_WGMMA(112, bf16, 56, 57, 58, 59, 60, 61)
EA_WGMMA(112, f16, 56, 57, 58, 59, 60, 61)
EA_WGMMA(128, bf16, 64, 65, 66, 67, 68, 69)
EA_WGMMA(128, f16, 64, 65, 66, 67, 68, 69)
EA_WGMMA(192, bf16, 96, 97, 98, 99, 100, 101)
EA_WGMMA(192, f16, 96, 97, 98, 99, 100, 101)
EA_WGMMA(256, bf16, 128, 129, 130, 131, 132, 133)
EA_WGMMA(256, f16, 128, 129, 130, 131, 132, 133)

#endif
