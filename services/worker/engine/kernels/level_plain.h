/* Vectors of 4 floats in plain C, for every other CPU. level_avx512.h says what each function does. Where the CPU has
   no fused multiply-add, the C library emulates it, with the same bits but slowly. */
#pragma once

#include <math.h>
#include <string.h>

#ifdef __ARM_NEON
#include <arm_neon.h>
#endif

#include "kernels.h"

#define LANES 4
typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Bits __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16))); /* whose sums may wrap */
typedef double Doubles __attribute__((vector_size(16)));
typedef int64_t LongBits __attribute__((vector_size(16)));
typedef uint64_t LongWords __attribute__((vector_size(16)));

static inline Floats load(const float *from) {
    Floats values;
    memcpy(&values, from, sizeof values);
    return values;
}

static inline void store(float *to, Floats values) { memcpy(to, &values, sizeof values); }
static inline Floats everywhere(float value) { return (Floats){value, value, value, value}; }

static inline Floats multiply_add(Floats a, Floats b, Floats c) {
#ifdef __ARM_NEON
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return (Floats){fmaf(a[0], b[0], c[0]), fmaf(a[1], b[1], c[1]), fmaf(a[2], b[2], c[2]), fmaf(a[3], b[3], c[3])};
#endif
}

/* `a` where all bits of `mask` are set, else `b`. */
static inline Floats choose(Bits mask, Floats a, Floats b) { return (Floats)((mask & (Bits)a) | (~mask & (Bits)b)); }

static inline Floats larger(Floats a, Floats b) { return choose(a > b, a, b); }
static inline Floats where_negative(Floats x, Floats a, Floats b) { return choose(x < everywhere(0.0f), a, b); }
static inline Floats magnitude(Floats x) { return (Floats)((Bits)x & 0x7fffffff); }
static inline Floats scale_by_bits(Floats x, Floats bits) { return (Floats)((Words)x + ((Words)bits << 23)); }

static inline Doubles doubles_everywhere(double value) { return (Doubles){value, value}; }
static inline Doubles lower_doubles(Floats x) { return (Doubles){x[0], x[1]}; }
static inline Doubles upper_doubles(Floats x) { return (Doubles){x[2], x[3]}; }

static inline Doubles multiply_add_doubles(Doubles a, Doubles b, Doubles c) {
#ifdef __ARM_NEON
    return (Doubles)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return (Doubles){fma(a[0], b[0], c[0]), fma(a[1], b[1], c[1])};
#endif
}

static inline Doubles larger_doubles(Doubles a, Doubles b) {
    LongBits mask = a > b;
    return (Doubles)((mask & (LongBits)a) | (~mask & (LongBits)b));
}

static inline Doubles scale_doubles_by_bits(Doubles x, Doubles bits) {
    return (Doubles)((LongWords)x + ((LongWords)bits << 52));
}

static inline Floats widen(const bf16 *from) {
    return (Floats)((Words){from[0], from[1], from[2], from[3]} << 16);
}

static inline Floats widen_even(const bf16 *from) { return (Floats)((Words)load((const float *)from) << 16); }
static inline Floats widen_odd(const bf16 *from) {
    return (Floats)((Bits)load((const float *)from) & (int32_t)0xffff0000);
}

static inline void narrow(bf16 *to, Floats values) {
    Words bits = (Words)values, rounded = bits + ((bits >> 16) & 1) + 0x7fff;
    Words nan = {0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000};
    Words halves = (Words)choose(values == values, (Floats)rounded, (Floats)nan) >> 16;
    for (int i = 0; i < LANES; i++)
        to[i] = (bf16)halves[i];
}

static inline void transpose(const int32_t *from, int64_t stride, int32_t *to, int64_t to_stride) {
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 16; column++)
            memcpy(to + column * to_stride + row, from + row * stride + column, sizeof *to); /* may be unaligned */
}
