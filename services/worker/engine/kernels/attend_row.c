/* Attention of one row: its keys and values are read once, from wherever in memory they lie. */
#include "avx512.h"

/* 16 vectors -> the sum of each. */
static inline __m512 sums(__m512 v[FLOATS]) {
    for (int i = 0; i < 8; i++)
        v[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        __m512d even = _mm512_castps_pd(v[2 * i]), odd = _mm512_castps_pd(v[2 * i + 1]);
        v[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(even, odd)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(even, odd)));
    }
    for (int i = 0; i < 2; i++)
        v[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x88), _mm512_shuffle_f32x4(v[0], v[1], 0xdd));
}

/* Scores of up to 16 keys. */
static inline __attribute__((always_inline)) __m512 score(const bf16 *query, const bf16 *keys, int64_t count, int64_t head_dim) {
    __m512 products[FLOATS];
    for (int i = 0; i < FLOATS; i++) {
        products[i] = _mm512_setzero_ps();
        const bf16 *key = keys + (i < count ? i : count - 1) * head_dim;
        for (int64_t d = 0; d < head_dim; d += HALVES) {
            __mmask32 mask = first_halves(head_dim - d);
            products[i] = _mm512_dpbf16_ps(products[i], load_halves(mask, key + d), load_halves(mask, query + d));
        }
    }
    return sums(products);
}

/* 32 of the head's dimensions: the sum of all values, each times its weight. Two sums, of every other pair of
   positions, as one would wait for itself. */
static inline __attribute__((always_inline)) void mix(const bf16 *weights, const bf16 *values, bf16 *out, int64_t count, int64_t head_dim,
                       __mmask32 mask, __m512 scale) {
    __m512 low[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, high[2] = {low[0], low[0]};
    for (int64_t i = 0; i < count; i += 4)
        for (int chain = 0; chain < 2; chain++) {
            int64_t at = i + 2 * chain, last = count - 1;
            __m512i even = (__m512i)load_halves(mask, values + (at < last ? at : last) * head_dim);
            __m512i odd = (__m512i)load_halves(mask, values + (at + 1 < last ? at + 1 : last) * head_dim);
            __m512bh pair = pair_everywhere(weights + at);
            low[chain] = _mm512_dpbf16_ps(low[chain], (__m512bh)_mm512_unpacklo_epi16(even, odd), pair);
            high[chain] = _mm512_dpbf16_ps(high[chain], (__m512bh)_mm512_unpackhi_epi16(even, odd), pair);
        }
    __m512 lower = _mm512_mul_ps(_mm512_add_ps(low[0], low[1]), scale);
    __m512 higher = _mm512_mul_ps(_mm512_add_ps(high[0], high[1]), scale);
    /* Of each eight dimensions four are in `lower` and four in `higher`. */
    const __m512i begin = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i end = _mm512_add_epi32(begin, _mm512_set1_epi32(8));
    store_floats(out, (__mmask16)mask, _mm512_permutex2var_ps(lower, begin, higher));
    store_floats(out + FLOATS, (__mmask16)(mask >> FLOATS), _mm512_permutex2var_ps(lower, end, higher));
}

static inline __attribute__((always_inline)) void attend_head(const bf16 *queries, bf16 *out, const bf16 *keys, const bf16 *values, int64_t length,
                               const Cache *cache, float *scratch, int64_t size) {
    int64_t padded = (length + HALVES - 1) / HALVES * HALVES;
    bf16 *weights = (bf16 *)(scratch + padded);
    for (int64_t head = 0; head < cache->group; head++) {
        for (int64_t i = 0; i < length; i += FLOATS)
            _mm512_storeu_ps(scratch + i, score(queries + head * size, keys + i * size, length - i, size));
        float root = __builtin_sqrtf((float)size), most = largest(scratch, length);
        __m512 scale = _mm512_set1_ps(1.0f / soften(scratch, weights, length, padded, most, 1.0f / root));
        for (int64_t d = 0; d < size; d += HALVES)
            mix(weights, values + d, out + head * size + d, length, size, first_halves(size - d), scale);
    }
}

void attend_row(const bf16 *queries, bf16 *out, int64_t slot, int64_t length, const Cache *cache, float *scratch) {
    int64_t size = cache->head_dim, stride = cache->group * size;
    for (int64_t head = 0; head < cache->kv_heads; head++, queries += stride, out += stride) {
        int64_t place = (head * cache->slots + slot) * size;
        const bf16 *keys = cache->keys + place, *values = cache->values + place;
        if (size == 64) /* The usual sizes as constants: without masks, and unrolled. */
            attend_head(queries, out, keys, values, length, cache, scratch, 64);
        else if (size == 128)
            attend_head(queries, out, keys, values, length, cache, scratch, 128);
        else
            attend_head(queries, out, keys, values, length, cache, scratch, size);
    }
}
