/* What all ways of unpacking panels have in common. Include this after panel.h and vectors.h. */
#pragma once

/* Whether scales have more than 11 bits. */
static inline int has_long_scales(const Packing *packing) {
    return packing->scales == SCALES_FLOAT32 || packing->scales == SCALES_PANEL;
}

/* The scales of eight outputs from number `at` on. */
static inline __attribute__((always_inline)) __m256 eight_scales(int64_t scales, const char *from, int at) {
    if (scales == SCALES_PANEL)
        return _mm256_set1_ps(*(const float *)from);
    if (scales == SCALES_FLOAT32)
        return _mm256_loadu_ps((const float *)from + at);
    if (scales == SCALES_E8M0) {
        __m128i eight = _mm_loadl_epi64((const __m128i *)(from + at));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(eight), 23));
    }
    __m128i halves = _mm_loadu_si128((const __m128i *)((const uint16_t *)from + at));
    if (scales == SCALES_FLOAT16)
        return _mm512_castps512_ps256(_mm512_cvtph_ps(_mm256_castsi128_si256(halves)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* Where the exponent of a code of FP8 is zero, which makes 2 * (1 + fraction), it stands for 4 * fraction. Denormal
   numbers of float32 would do the same, but each of them takes the CPU a hundred cycles. */
static inline __attribute__((always_inline)) __m512 denormalized(__m512 made) {
    const __m512 sign = _mm512_set1_ps(-0.0f), magnitude = _mm512_andnot_ps(sign, made);
    __m512 less = _mm512_fmadd_ps(magnitude, _mm512_set1_ps(2.0f), _mm512_set1_ps(-4.0f));
    return _mm512_or_ps(_mm512_min_ps(magnitude, less), _mm512_and_ps(sign, made));
}

/* Whether any of 128 codes of FP8 may be denormal. Few codes are in most matrices. */
static inline __attribute__((always_inline)) int has_small(__m512i codes, __m512i others) {
    const __m512i exponent = _mm512_set1_epi8(0x78);
    return !_kortestz_mask64_u8(_mm512_testn_epi8_mask(codes, exponent), _mm512_testn_epi8_mask(others, exponent));
}

/* The number of cache lines that the scales and zeros of a group take. */
static inline __attribute__((always_inline)) int64_t group_lines(const Packing *packing) {
    return (scales_size(packing) + (packing->zeros ? PANEL : 0)) / 64;
}

/* Prefetches `lines` cache lines; returns the address after them. */
static inline __attribute__((always_inline)) const char *prefetch(const char *ahead, int64_t lines) {
    for (; lines > 0; lines--, ahead += 64)
        _mm_prefetch(ahead, _MM_HINT_T0);
    return ahead;
}

/* The same, but not into the nearest cache: that has room for few lines that are still on their way. */
static inline __attribute__((always_inline)) const char *prefetch_near(const char *ahead, int64_t lines) {
    for (; lines > 0; lines--, ahead += 64)
        _mm_prefetch(ahead, _MM_HINT_T1);
    return ahead;
}
