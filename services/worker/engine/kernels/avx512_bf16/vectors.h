/* Operations on vectors of 16 floats and of 32 bfloat16. */
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <string.h>

#include "../kernels.h"

#if defined(__clang__) && defined(WITH_VBMI) /* end_target.h ends it */
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi"))), apply_to = function)
#elif defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"))), apply_to = function)
#elif defined(WITH_VBMI)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#endif

#define FLOATS 16
#define HALVES 32
#define ALL ((__mmask16)0xffff) /* a mask of all 16 lanes that is constant, so that it costs nothing */
#define LOG2_E 1.44269504f

/* Masks of the first `count` of 32, or of 16, elements. */
static inline __mmask32 first_halves(int64_t count) { return count >= HALVES ? 0xffffffffu : (1u << count) - 1; }
static inline __mmask16 first_floats(int64_t count) { return count >= FLOATS ? 0xffff : (1u << count) - 1; }

static inline __m512bh load_halves(__mmask32 mask, const bf16 *from) {
    return (__m512bh)_mm512_maskz_loadu_epi16(mask, from);
}

static inline __m512 load_floats(__mmask16 mask, const bf16 *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

static inline void store_floats(bf16 *to, __mmask16 mask, __m512 values) {
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(values));
}

/* Broadcasts two neighbouring bfloat16 to all 16 lanes. */
static inline __m512bh pair_everywhere(const bf16 *from) {
    int32_t pair;
    memcpy(&pair, from, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* 2^x for x <= 0, with a relative error of 3e-6, less than bfloat16 resolves; 0 if too small for a float. */
static inline __m512 two_to(__m512 x) {
    __m512 rest = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF); /* x - floor(x); 0 if x is infinite */
    __m512 sum = _mm512_set1_ps(0.0135341679f);
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.0520114606f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.241442757f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.693003834f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.00000259f));
    return _mm512_scalef_ps(sum, x); /* times 2^floor(x) */
}

/* e^x for x <= 0. */
static inline __m512 exponential(__m512 x) { return two_to(_mm512_mul_ps(x, _mm512_set1_ps(LOG2_E))); }

/* The tangent that bends scores: cap * tanh(scale * score / cap). */
static inline __m512 bend(__m512 scores, float scale, float cap) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 x = _mm512_mul_ps(scores, _mm512_set1_ps(scale / cap));
    __m512 small = exponential(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-2.0f)));
    __m512 tangent = _mm512_div_ps(_mm512_sub_ps(one, small), _mm512_add_ps(one, small));
    __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_mul_ps(tangent, _mm512_mask_mov_ps(_mm512_set1_ps(cap), negative, _mm512_set1_ps(-cap)));
}

static inline float largest(const float *scores, int64_t count) {
    __m512 most = _mm512_set1_ps(-__builtin_inff());
    int64_t i = 0;
    for (; i + FLOATS <= count; i += FLOATS)
        most = _mm512_max_ps(most, _mm512_loadu_ps(scores + i));
    __mmask16 rest = first_floats(count - i);
    most = _mm512_mask_max_ps(most, rest, most, _mm512_maskz_loadu_ps(rest, scores + i));
    return _mm512_reduce_max_ps(most);
}

static inline __attribute__((always_inline)) __m512 weights_of(const float *scores, __mmask16 mask, __m512 unit,
                                                               __m512 top) {
    return _mm512_maskz_mov_ps(mask, two_to(_mm512_fmsub_ps(_mm512_maskz_loadu_ps(mask, scores), unit, top)));
}

/* The weights of 32 scores, or of those in `mask`, rounded to bfloat16. */
static inline __attribute__((always_inline)) __m512bh rounded_weights(const float *scores, __mmask32 mask, __m512 unit,
                                                                      __m512 top) {
    __m512 low = weights_of(scores, (__mmask16)mask, unit, top);
    __m512 high = weights_of(scores + FLOATS, (__mmask16)(mask >> FLOATS), unit, top);
    return _mm512_cvtne2ps_pbh(high, low);
}

/* Turns scores into bfloat16 weights, not yet divided by their sum; zeros from `count` to `padded`, the next multiple
   of 32. Returns the sum of the rounded weights. */
static inline float soften(const float *scores, bf16 *weights, int64_t count, int64_t padded, float most, float scale) {
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 unit = _mm512_set1_ps(scale * LOG2_E), top = _mm512_mul_ps(_mm512_set1_ps(most), unit);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < padded; i += HALVES) {
        __m512bh rounded = count - i >= HALVES ? rounded_weights(scores + i, 0xffffffffu, unit, top)
                                               : rounded_weights(scores + i, first_halves(count - i), unit, top);
        _mm512_storeu_si512(weights + i, (__m512i)rounded);
        sum = _mm512_dpbf16_ps(sum, rounded, ones);
    }
    return _mm512_reduce_add_ps(sum);
}
