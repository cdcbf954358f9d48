/* Attention of one row. Its keys and values are read once, in place. */
#ifdef __x86_64__
#include "../power.h"
#include "operations.h"
#include "vectors.h"

#include "kept.h"

#define HEADS 4 /* whose sums are kept in registers */

/* Query heads: the number of positions that they see, their weights, and the factors that scale their sums in the end.
   */
typedef struct {
    int64_t length;
    bf16 *weights[HEADS];
    float scales[HEADS];
} Heads;

/* Returns the sums of 16 vectors. */
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

/* Computes the scores of up to 16 keys. */
static inline __attribute__((always_inline)) __m512 score(const bf16 *query, const bf16 *keys, int64_t count,
                                                          int64_t head_dim) {
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

/* Prefetches `count` keys or values from number `at` on. */
static inline __attribute__((always_inline)) void expect(int fp8, const void *from, int64_t at, int64_t count) {
    const char *end = kept_at(fp8, from, at + count);
    for (const char *line = kept_at(fp8, from, at); line < end; line += 64)
        _mm_prefetch(line, _MM_HINT_T1);
}

/* Returns up to 16 keys from number `at` on; those in fp8 are unpacked into `tile`. */
static inline __attribute__((always_inline)) const bf16 *keys_at(int fp8, const void *keys, int64_t at, int64_t count,
                                                                 bf16 *tile) {
    if (!fp8)
        return (const bf16 *)keys + at;
    for (int64_t i = 0; i < count; i += HALVES)
        _mm512_mask_storeu_epi16(tile + i, first_halves(count - i),
                                 (__m512i)load_kept(1, first_halves(count - i), keys, at + i));
    return tile;
}

/* Computes 32 dimensions of `heads` query heads: the weighted sum of all values. It keeps two sums, of every other pair
   of positions, as additions to a single sum would wait for each other. `next` is memory to prefetch after the values,
   or NULL. */
static inline __attribute__((always_inline)) void mix(int fp8, const Heads *of, const void *values, bf16 *out,
                                                      int64_t size, const void *next, __mmask32 mask, int heads) {
    __m512 low[HEADS][2], high[HEADS][2];
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++)
        low[head][0] = low[head][1] = high[head][0] = high[head][1] = _mm512_setzero_ps();
    for (int64_t i = 0, last = of->length - 1; i <= last; i += 4) {
        if (next)
            expect(fp8, next, i * size, 4 * size);
#pragma GCC unroll 2
        for (int chain = 0; chain < 2; chain++) {
            int64_t at = i + 2 * chain;
            __m512i even = (__m512i)load_kept(fp8, mask, values, (at < last ? at : last) * size);
            __m512i odd = (__m512i)load_kept(fp8, mask, values, (at + 1 < last ? at + 1 : last) * size);
            __m512bh lower = (__m512bh)_mm512_unpacklo_epi16(even, odd);
            __m512bh higher = (__m512bh)_mm512_unpackhi_epi16(even, odd);
#pragma GCC unroll 4
            for (int head = 0; head < heads; head++) {
                __m512bh pair = pair_everywhere(of->weights[head] + at);
                low[head][chain] = _mm512_dpbf16_ps(low[head][chain], lower, pair);
                high[head][chain] = _mm512_dpbf16_ps(high[head][chain], higher, pair);
            }
        }
    }
    /* Of every eight dimensions, four are in `lower` and four in `higher`. */
    const __m512i begin = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i end = _mm512_add_epi32(begin, _mm512_set1_epi32(8));
#pragma GCC unroll 4
    for (int head = 0; head < heads; head++, out += size) {
        __m512 scale = _mm512_set1_ps(of->scales[head]);
        __m512 lower = _mm512_mul_ps(_mm512_add_ps(low[head][0], low[head][1]), scale);
        __m512 higher = _mm512_mul_ps(_mm512_add_ps(high[head][0], high[head][1]), scale);
        store_floats(out, (__mmask16)mask, _mm512_permutex2var_ps(lower, begin, higher));
        store_floats(out + FLOATS, (__mmask16)(mask >> FLOATS), _mm512_permutex2var_ps(lower, end, higher));
    }
}

/* What scores are multiplied by and bent towards, and how many of the first positions are hidden, fewer than 16. `head`
   is the first query head. */
typedef struct {
    const Attention *attention;
    float scale, cap;
    int64_t hidden, head;
} Scoring;

/* Computes query heads that share keys and values. Memory is read once and ahead: values while scores are computed, and
   the keys at `next` while values are summed. */
static inline __attribute__((always_inline)) void attend_heads(int fp8, const bf16 *queries, bf16 *out,
                                                               const void *keys, const void *values, const void *next,
                                                               int64_t length, const Scoring *scoring, float *scratch,
                                                               int64_t size, int heads) {
    int64_t padded = (length + HALVES - 1) / HALVES * HALVES;
    Heads of = {.length = length};
    bf16 *tile = (bf16 *)(scratch + HEADS * padded) + HEADS * padded; /* behind the weights */
    for (int64_t i = 0; i < length; i += FLOATS) {
        expect(fp8, values, i * size, FLOATS * size);
        int64_t count = length - i < FLOATS ? length - i : FLOATS;
        const bf16 *own = keys_at(fp8, keys, i * size, count * size, tile);
        for (int head = 0; head < heads; head++) {
            __m512 scores = score(queries + head * size, own, count, size);
            if (scoring->cap)
                scores = bend(scores, scoring->scale, scoring->cap);
            if (i < scoring->hidden)
                scores = _mm512_mask_mov_ps(scores, first_floats(scoring->hidden), _mm512_set1_ps(-__builtin_inff()));
            _mm512_storeu_ps(scratch + head * padded + i, scores);
        }
    }
    for (int head = 0; head < heads; head++) {
        float *scores = scratch + head * padded, scale = scoring->cap ? 1.0f : scoring->scale;
        of.weights[head] = (bf16 *)(scratch + HEADS * padded) + head * padded;
        float most = largest(scores, length), sum = soften(scores, of.weights[head], length, padded, most, scale);
        of.scales[head] = share_of(scoring->attention, scoring->head + head, sum, most * scale);
    }
    for (int64_t d = 0; d < size; d += HALVES)
        mix(fp8, &of, kept_at(fp8, values, d), out + d, size, d ? NULL : next, first_halves(size - d), heads);
}

static inline __attribute__((always_inline)) void attend_group(int fp8, const bf16 *queries, bf16 *out,
                                                               const void *keys, const void *values, const void *next,
                                                               int64_t length, Scoring *scoring, float *scratch,
                                                               int64_t size, int64_t group) {
    for (; group > 0; group -= HEADS, queries += HEADS * size, out += HEADS * size, scoring->head += HEADS)
        switch (group) {
        case 1: attend_heads(fp8, queries, out, keys, values, next, length, scoring, scratch, size, 1); break;
        case 2: attend_heads(fp8, queries, out, keys, values, next, length, scoring, scratch, size, 2); break;
        case 3: attend_heads(fp8, queries, out, keys, values, next, length, scoring, scratch, size, 3); break;
        default: attend_heads(fp8, queries, out, keys, values, next, length, scoring, scratch, size, HEADS); break;
        }
}

/* `place` is the number at which the keys of these heads begin, and their values. */
static inline __attribute__((always_inline)) void attend_head(int fp8, const bf16 *queries, bf16 *out,
                                                              const Cache *cache, int64_t place, int64_t length,
                                                              Scoring *scoring, float *scratch) {
    const void *keys = kept_at(fp8, cache->keys, place), *values = kept_at(fp8, cache->values, place);
    int64_t size = cache->head_dim, group = cache->group;
    /* After the last head these are other keys, which are only prefetched. */
    const void *next = kept_at(fp8, keys, cache->slots * size);
    if (size == 64) /* With the usual sizes as constants, loops are unrolled and need no masks. */
        attend_group(fp8, queries, out, keys, values, next, length, scoring, scratch, 64, group);
    else if (size == 128)
        attend_group(fp8, queries, out, keys, values, next, length, scoring, scratch, 128, group);
    else
        attend_group(fp8, queries, out, keys, values, next, length, scoring, scratch, size, group);
}

void attend_row(const bf16 *queries, bf16 *out, int64_t slot, int64_t length, const Attention *attention,
                float *scratch, Share kv_heads) {
    const Cache *cache = &attention->cache;
    /* A window begins at a multiple of 16, so that a position is always in the same lane. */
    int64_t start = first_seen(attention, length - 1), first = start / FLOATS * FLOATS;
    Scoring scoring = {attention, scale_of(attention), (float)attention->cap, start - first, 0};
    slot += first, length -= first;
    int64_t size = cache->head_dim, group = cache->group, stride = group * size;
    for (int64_t head = kv_heads.begin; head < kv_heads.end; head++) {
        scoring.head = head * group;
        const bf16 *own = queries + head * stride;
        bf16 *result = out + head * stride;
        int64_t place = (head * cache->slots + slot) * size;
        if (cache->fp8)
            attend_head(1, own, result, cache, place, length, &scoring, scratch);
        else
            attend_head(0, own, result, cache, place, length, &scoring, scratch);
    }
}

#include "../end_target.h"
#endif
