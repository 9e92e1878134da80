/* tanh of small arguments, for the logit cap of the CPU's vector kernels and of the GPU's: there
 * 1 - 2 / (1 + exp(2y)) cancels. Fitted for this project by Remez exchange and rounded to f32.
 *
 * (tanh(y) - y) / y^3 as a polynomial in z = y^2, for |y| < EA_TANH_SMALL; relative error of tanh 4.4e-9.
 * fma(a, b, c) and constant(x) are the including code's. */
#ifndef EA_COMMON_TANH_H
#define EA_COMMON_TANH_H

#define EA_TANH_SMALL 0.625f
#define EA_TANH_POLY(z, fma, constant)                                                                                 \
  fma(fma(fma(fma(constant(-0.00570498593f), (z), constant(0.0206390861f)), (z), constant(-0.0537397154f)), (z),       \
          constant(0.133314416f)),                                                                                     \
      (z), constant(-0.333332807f))

#endif
