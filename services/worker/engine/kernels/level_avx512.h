/* Vectors of 16 floats, for CPUs with AVX-512, and also with AMX where WITH_AMX is defined. */
#pragma once

#include <immintrin.h>

#if defined(__clang__) && defined(WITH_AMX) /* end_target.h ends it */
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16,amx-tile,amx-bf16"))), \
    apply_to = function)
#elif defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#elif defined(WITH_AMX)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16,amx-tile,amx-bf16")
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif

#include "kernels.h"

#define LANES 16
typedef __m512 Floats;
typedef __m512d Doubles; /* half as many */

static inline Floats load(const float *from) { return _mm512_loadu_ps(from); }
static inline void store(float *to, Floats values) { _mm512_storeu_ps(to, values); }
static inline Floats everywhere(float value) { return _mm512_set1_ps(value); }
static inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

/* Returns the larger one; `b` if either is NaN. */
static inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }

/* `a` where `x` is negative, else `b`. */
static inline Floats where_negative(Floats x, Floats a, Floats b) {
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), a);
}

static inline Floats magnitude(Floats x) { return _mm512_abs_ps(x); }

/* Returns `x` times 2^n, where n is in the lowest bits of each lane of `bits`, and the product is a normal number. */
static inline Floats scale_by_bits(Floats x, Floats bits) {
    __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(bits), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), exponent));
}

static inline Doubles doubles_everywhere(double value) { return _mm512_set1_pd(value); }
static inline Doubles multiply_add_doubles(Doubles a, Doubles b, Doubles c) { return _mm512_fmadd_pd(a, b, c); }
static inline Doubles larger_doubles(Doubles a, Doubles b) { return _mm512_max_pd(a, b); }
static inline Doubles lower_doubles(Floats x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
static inline Doubles upper_doubles(Floats x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }

static inline Doubles scale_doubles_by_bits(Doubles x, Doubles bits) {
    __m512i exponent = _mm512_slli_epi64(_mm512_castpd_si512(bits), 52);
    return _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(x), exponent));
}

static inline Floats widen(const bf16 *from) {
    __m256i halves = _mm256_loadu_si256((const __m256i *)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* Widen the first and the second element of each pair of bfloat16. */
static inline Floats widen_even(const bf16 *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(from), 16));
}
static inline Floats widen_odd(const bf16 *from) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi32((int)0xffff0000)));
}

#ifdef WITH_AMX
/* The same as `narrow` below except for denormal numbers, which do not occur where this is used. */
static inline void narrow(bf16 *to, Floats values) {
    __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    __m256i halves = (__m256i)_mm512_cvtneps_pbh(values);
    _mm256_storeu_si256((__m256i *)to, _mm256_mask_mov_epi16(halves, is_nan, _mm256_set1_epi16(0x7fc0)));
}

static inline int is_nan_in(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }

/* Narrows 32 numbers, none of which is NaN. */
#define NARROW_TWO
static inline void narrow_two(bf16 *to, Floats first, Floats second) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}
#else
/* Rounds to the nearest bfloat16, ties to even. Every NaN becomes the same one, since compilers may choose which NaN a
   sum keeps. */
static inline void narrow(bf16 *to, Floats values) {
    __m512i bits = _mm512_castps_si512(values);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    rounded = _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc00000));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
#endif

/* Transposes 16 numbers of 32 bits from each of 16 rows. */
static inline void transpose(const int32_t *from, int64_t stride, int32_t *to, int64_t to_stride) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i rows[16];
    for (int row = 0; row < 16; row++)
        rows[row] = _mm512_loadu_si512(from + row * stride);
    /* Swap square blocks beside the diagonal: first blocks of 8 by 8, then 4 by 4, 2 by 2, and 1 by 1. */
#pragma GCC unroll 4
    for (int size = 8; size; size /= 2) {
        __mmask16 right = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(size));
        __m512i upper = _mm512_mask_add_epi32(lane, right, lane, _mm512_set1_epi32(16 - size));
        __m512i lower = _mm512_add_epi32(upper, _mm512_set1_epi32(size));
#pragma GCC unroll 16
        for (int row = 0; row < 16; row++)
            if (!(row & size)) {
                __m512i before = rows[row];
                rows[row] = _mm512_permutex2var_epi32(before, upper, rows[row + size]);
                rows[row + size] = _mm512_permutex2var_epi32(before, lower, rows[row + size]);
            }
    }
    for (int row = 0; row < 16; row++)
        _mm512_storeu_si512(to + row * to_stride, rows[row]);
}
