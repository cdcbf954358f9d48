/* What the kernels do with vectors of 16 floats and of 32 bfloat16. */
#pragma once

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#include <immintrin.h>
#include <stddef.h>
#include <string.h>

#include "kernels.h"

#define FLOATS 16
#define HALVES 32

/* The first `count` of 32, or of 16, elements. */
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

/* Two neighbouring bfloat16, 16 times. */
static inline __m512bh pair_everywhere(const bf16 *from) {
    int32_t pair;
    memcpy(&pair, from, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* e^x for x <= 0, to 2 units in the last place of a float; 0 for what is too small for one. */
static inline __m512 exponential(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-104.0f));
    __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), x);
    rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.12194440e-4f), rest);
    __m512 sum = _mm512_set1_ps(1.9875691500e-4f);
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.3981999507e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(8.3334519073e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(4.1665795894e-2f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.6666665459e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(5.0000001201e-1f));
    sum = _mm512_fmadd_ps(sum, _mm512_mul_ps(rest, rest), _mm512_add_ps(rest, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(sum, whole);
}

static inline float largest(const float *scores, int64_t count) {
    __m512 most = _mm512_set1_ps(-__builtin_inff());
    for (int64_t i = 0; i < count; i += FLOATS)
        most = _mm512_mask_max_ps(most, first_floats(count - i), most, _mm512_loadu_ps(scores + i));
    return _mm512_reduce_max_ps(most);
}

/* Scores -> weights that are not divided by their sum yet, as bfloat16; zeros from `count` to `padded`, a multiple of
   32. Returns their sum as they were rounded. */
static inline float soften(const float *scores, bf16 *weights, int64_t count, int64_t padded, float most, float scale) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < padded; i += FLOATS) {
        __mmask16 mask = i < count ? first_floats(count - i) : 0;
        __m512 below = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, scores + i), _mm512_set1_ps(most));
        __m512 weight = _mm512_maskz_mov_ps(mask, exponential(_mm512_mul_ps(below, _mm512_set1_ps(scale))));
        __m256i rounded = (__m256i)_mm512_cvtneps_pbh(weight);
        _mm256_storeu_si256((__m256i *)(weights + i), rounded);
        sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16)));
    }
    return _mm512_reduce_add_ps(sum);
}
