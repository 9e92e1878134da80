/* Thin wrappers over the PTX instructions that the kernels use, by the instruction's own
 * name (PTX ISA, "Instruction Set"). Nothing else of the project contains inline PTX. */
#ifndef EA_CUDA_KERNELS_PTX_H
#define EA_CUDA_KERNELS_PTX_H

#include <stdint.h>

#define EA_DEVICE static __device__ __forceinline__

/* A shared-memory address as the instructions take it: 32 bits, in the shared window. */
EA_DEVICE uint32_t smem_address(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}

/* %tid.x. Volatile, so that it is read once: the compiler would rather read it again than keep it. */
EA_DEVICE int read_tid(void) {
  int tid;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
  return tid;
}

/* x, in a way that keeps what is computed from it from staying in registers between uses. */
EA_DEVICE int read_anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
/* What lies at a shared-memory address, read anew at each use, so that nothing of it stays in registers in
 * between: the products need them all. */
EA_DEVICE const void *shared_anew(uint32_t address) {
  asm volatile("" : "+r"(address)::"memory");
  return __cvta_shared_to_generic(address);
}

/* The multiprocessor's cycles, the low half and all of them, and its number; the GPU's nanoseconds, which pass in steps
 * of up to a microsecond. In order with what else is volatile. */
EA_DEVICE uint32_t read_clock(void) {
  uint32_t cycles;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
  return cycles;
}
EA_DEVICE int64_t read_clock64(void) {
  int64_t cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}
EA_DEVICE int64_t read_globaltimer(void) {
  int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}
EA_DEVICE uint32_t read_smid(void) {
  uint32_t number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}

/* ---- asynchronous copies, global to shared -------------------------------------------- */

/* Somebody will soon read what is there. */
EA_DEVICE void prefetch_l2(const void *global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

/* 16 bytes, not kept in L1; the bytes past src_bytes (0 or 16 here) are written as zero. */
EA_DEVICE void cp_async_16(uint32_t dst, const void *src, uint32_t src_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(src_bytes)
               : "memory");
}
/* Waits for all of this thread's cp.async. */
EA_DEVICE void cp_async_wait_all(void) {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- mbarriers ------------------------------------------------------------------------------ */

EA_DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
EA_DEVICE void mbarrier_inval(uint32_t barrier) {
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
EA_DEVICE void mbarrier_arrive(uint32_t barrier) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier) : "memory");
}
/* Arrives when all cp.async of this thread so far are done; counts against the barrier's own number. */
EA_DEVICE void cp_async_mbarrier_arrive_noinc(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
/* `arrivals` of them at once. */
EA_DEVICE void mbarrier_arrive_many(uint32_t barrier, uint32_t arrivals) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0], %1;}" ::"r"(barrier), "r"(arrivals)
               : "memory");
}
/* Waits for the end of the phase with this parity. */
EA_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
               "@!done bra again;\n"
               "}" ::"r"(barrier),
               "r"(parity)
               : "memory");
#else
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again: mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
               "@!done bra again;\n"
               "}" ::"r"(barrier),
               "r"(parity)
               : "memory");
#endif
}

/* ---- shared memory --------------------------------------------------------------------- */

EA_DEVICE void st_shared_v4(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
EA_DEVICE uint4 ld_shared_v4(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
EA_DEVICE void st_shared_b32(uint32_t address, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
EA_DEVICE void st_shared_f32(uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
EA_DEVICE float ld_shared_f32(uint32_t address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}
EA_DEVICE void st_shared_b64(uint32_t address, uint64_t v) {
  asm volatile("st.shared.b64 [%0], %1;" ::"r"(address), "l"(v) : "memory");
}
EA_DEVICE uint64_t ld_shared_b64(uint32_t address) {
  uint64_t v;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(v) : "r"(address) : "memory");
  return v;
}
EA_DEVICE uint32_t ld_shared_b32(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. */
EA_DEVICE void ldmatrix_x4(uint32_t r[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
EA_DEVICE void ldmatrix_x2(uint32_t r[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}
EA_DEVICE void ldmatrix_x4_trans(uint32_t r[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/* ---- products of a warp ------------------------------------------------------------------ */

/* d += a (16x16, row major) . b (16x8, column major), f32 accumulation; _zero: d = a . b. */
EA_DEVICE void mma_m16n8k16_bf16_zero(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}
EA_DEVICE void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
EA_DEVICE void mma_m16n8k16_f16_zero(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}
EA_DEVICE void mma_m16n8k16_f16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* ---- barriers ------------------------------------------------------------------------------ */

/* Waits until `threads` threads have come to barrier `id` (0 is __syncthreads'). */
EA_DEVICE void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- arithmetic ---------------------------------------------------------------------------- */

EA_DEVICE float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/* A product that is rounded, whatever it is added to. */
EA_DEVICE float mul_rn(float a, float b) {
  float y;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
/* The greater, NaN where either is. */
EA_DEVICE float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
/* Two f32 to a pair of 16-bit floats, round to nearest even; lo in the low half. */
EA_DEVICE uint32_t cvt_bf16x2(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
EA_DEVICE uint32_t cvt_f16x2(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
EA_DEVICE float cvt_f32_f16(uint32_t bits) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((uint16_t)bits));
  return r;
}

#endif
