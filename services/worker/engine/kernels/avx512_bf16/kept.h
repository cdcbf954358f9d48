/* Loads keys and values that are kept in bfloat16 or as float8_e4m3fn. Include this after vectors.h. */
#pragma once

/* Returns the numbers of 32 codes, which is exact. */
static inline __attribute__((always_inline)) __m512bh load_fp8(__mmask32 mask, const uint8_t *from) {
    /* Those of the smallest codes, which have no exponent. */
    const __m512i small = _mm512_zextsi128_si512(
        _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
    __m512i code = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, from));
    __m512i size = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
    __m512i made = _mm512_add_epi16(_mm512_slli_epi16(size, 4), _mm512_set1_epi16(120 << 7));
    made = _mm512_mask_permutexvar_epi16(made, _mm512_cmplt_epu16_mask(size, _mm512_set1_epi16(8)), size, small);
    __mmask32 is_nan = _mm512_cmpeq_epi16_mask(size, _mm512_set1_epi16(0x7f));
    made = _mm512_mask_mov_epi16(made, is_nan, _mm512_set1_epi16(0x7fc0));
    /* made | (code << 8 & 0x8000) */
    return (__m512bh)_mm512_ternarylogic_epi32(made, _mm512_slli_epi16(code, 8), _mm512_set1_epi16((short)0x8000),
                                               0xf8);
}

/* Loads up to 32 numbers from number `at` on. `fp8` is a constant. */
static inline __attribute__((always_inline)) __m512bh load_kept(int fp8, __mmask32 mask, const void *from, int64_t at) {
    return fp8 ? load_fp8(mask, (const uint8_t *)from + at) : load_halves(mask, (const bf16 *)from + at);
}

/* Returns the address of number `at`. */
static inline __attribute__((always_inline)) const void *kept_at(int fp8, const void *from, int64_t at) {
    return (const char *)from + at * (fp8 ? 1 : (int64_t)sizeof(bf16));
}
