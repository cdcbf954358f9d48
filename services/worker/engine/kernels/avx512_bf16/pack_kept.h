/* Packs the keys and values of a head as pairs. Include this after kept.h. */
#pragma once

/* Transposes 16 rows of 16 numbers: swaps square blocks beside the diagonal, first of 8 by 8, then of 4, 2 and 1. */
static inline __attribute__((always_inline)) void transpose(__m512i rows[FLOATS]) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#pragma GCC unroll 4
    for (int size = FLOATS / 2; size; size /= 2) {
        __mmask16 right = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(size));
        __m512i upper = _mm512_mask_add_epi32(lane, right, lane, _mm512_set1_epi32(FLOATS - size));
        __m512i lower = _mm512_add_epi32(upper, _mm512_set1_epi32(size));
#pragma GCC unroll 16
        for (int row = 0; row < FLOATS; row++)
            if (!(row & size)) {
                __m512i before = rows[row];
                rows[row] = _mm512_permutex2var_epi32(before, upper, rows[row + size]);
                rows[row + size] = _mm512_permutex2var_epi32(before, lower, rows[row + size]);
            }
    }
}

/* Packs keys `[position, dimension]` as `[32 positions, pair of dimensions, position, dimension of the pair]`, padded
   with zeros. */
static inline __attribute__((always_inline)) void pack_keys(int fp8, const void *keys, int32_t *packed, int64_t padded,
                                                            int64_t length, int64_t head_dim) {
    int64_t pairs = head_dim / 2;
    for (int64_t first = 0; first < padded; first += FLOATS)
        for (int64_t pair = 0; pair < pairs; pair += FLOATS) {
            __m512i rows[FLOATS];
            for (int64_t i = 0; i < FLOATS; i++) {
                __mmask32 mask = first + i < length ? first_halves(head_dim - 2 * pair) : 0;
                rows[i] = (__m512i)load_kept(fp8, mask, keys, (first + i) * head_dim + 2 * pair);
            }
            transpose(rows);
            int32_t *to = packed + first / HALVES * HALVES * pairs + pair * HALVES + first % HALVES;
            for (int64_t i = 0; i < FLOATS && pair + i < pairs; i++)
                _mm512_storeu_si512(to + i * HALVES, rows[i]);
        }
}

/* Packs values `[position, dimension]` as `[32 dimensions, pair of positions, dimension, position of the pair]`, padded
   with zeros. Dimensions are in the order that the unpack instructions leave. */
static inline __attribute__((always_inline)) void pack_values(int fp8, const void *values, int32_t *packed,
                                                              int64_t padded, int64_t length, int64_t head_dim) {
    const __m512i begin = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i end = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (int64_t d = 0; d < head_dim; d += HALVES)
        for (int64_t i = 0; i < padded; i += 2, packed += HALVES) {
            __mmask32 mask = first_halves(head_dim - d);
            __m512i even = (__m512i)load_kept(fp8, i < length ? mask : 0, values, i * head_dim + d);
            __m512i odd = (__m512i)load_kept(fp8, i + 1 < length ? mask : 0, values, (i + 1) * head_dim + d);
            __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
            _mm512_storeu_si512(packed, _mm512_permutex2var_epi64(low, begin, high));
            _mm512_storeu_si512(packed + FLOATS, _mm512_permutex2var_epi64(low, end, high));
        }
}
