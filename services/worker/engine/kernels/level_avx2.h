/* Vectors of 8 floats, for CPUs with AVX2 and FMA. level_avx512.h says what each function does. */
#pragma once

#include <immintrin.h>

#ifdef __clang__ /* end_target.h ends it */
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#include "kernels.h"

#define LANES 8
typedef __m256 Floats;
typedef __m256d Doubles;

static inline Floats load(const float *from) { return _mm256_loadu_ps(from); }
static inline void store(float *to, Floats values) { _mm256_storeu_ps(to, values); }
static inline Floats everywhere(float value) { return _mm256_set1_ps(value); }
static inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
static inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }

static inline Floats where_negative(Floats x, Floats a, Floats b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
}

static inline Floats magnitude(Floats x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

static inline Floats scale_by_bits(Floats x, Floats bits) {
    __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(bits), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
}

static inline Doubles doubles_everywhere(double value) { return _mm256_set1_pd(value); }
static inline Doubles multiply_add_doubles(Doubles a, Doubles b, Doubles c) { return _mm256_fmadd_pd(a, b, c); }
static inline Doubles larger_doubles(Doubles a, Doubles b) { return _mm256_max_pd(a, b); }
static inline Doubles lower_doubles(Floats x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
static inline Doubles upper_doubles(Floats x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }

static inline Doubles scale_doubles_by_bits(Doubles x, Doubles bits) {
    __m256i exponent = _mm256_slli_epi64(_mm256_castpd_si256(bits), 52);
    return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(x), exponent));
}

static inline Floats widen(const bf16 *from) {
    __m128i halves = _mm_loadu_si128((const __m128i *)from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

static inline Floats widen_even(const bf16 *from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)from), 16));
}
static inline Floats widen_odd(const bf16 *from) {
    return _mm256_and_ps(_mm256_loadu_ps((const float *)from), _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
}

static inline void narrow(bf16 *to, Floats values) {
    __m256i bits = _mm256_castps_si256(values);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    __m256i nan = _mm256_set1_epi32(0x7fc00000);
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    __m256i halves = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, nan, is_nan), 16);
    halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0x08);
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(halves));
}

/* Transposes 8 numbers from each of 8 rows. */
static inline void transpose_8(const float *from, int64_t stride, float *to, int64_t to_stride) {
    __m256 rows[8], pairs[8];
    for (int i = 0; i < 8; i++)
        rows[i] = _mm256_loadu_ps(from + i * stride);
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        rows[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        rows[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        rows[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        rows[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x31));
    }
}

static inline void transpose(const int32_t *from, int64_t stride, int32_t *to, int64_t to_stride) {
    for (int row = 0; row < 16; row += 8)
        for (int column = 0; column < 16; column += 8)
            transpose_8((const float *)from + row * stride + column, stride, (float *)to + column * to_stride + row,
                        to_stride);
}
