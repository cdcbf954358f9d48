/* Attention of a chunk of a prompt: the keys and values of a head are packed once for all of its rows. */
#ifdef __x86_64__
#include "../power.h"
#include "operations.h"
#include "vectors.h"

#include "kept.h"

/* Sums of ROWS rows, VECTORS vectors each, are kept in registers. */
#define ROWS 8
#define VECTORS 2
#define SPAN 512 /* positions whose scores are in the cache at a time; spans begin at multiples of it */

/* Rows that are computed together: the addresses of their queries and results, and the positions that each sees, from
   one of `starts` up to one of `lengths`. `scale` and `cap` are those of Attention, `head` is their query head. */
typedef struct {
    const Attention *attention;
    const bf16 *queries[ROWS];
    bf16 *out[ROWS];
    int64_t starts[ROWS], lengths[ROWS], head_dim, head;
    float scale, cap;
} Tile;

/* The state of each row: the largest score so far, the weights of a span relative to it, and the sum of all weights.
   `faded` is the factor by which earlier sums shrink (online softmax, Milakov and Gimelshein). */
typedef struct {
    _Alignas(64) float scores[ROWS][SPAN];
    _Alignas(64) bf16 weights[ROWS][SPAN];
    float most[ROWS], sum[ROWS], faded[ROWS];
} Softmax;

int64_t scratch_floats(int64_t positions, int64_t head_dim) {
    int64_t padded = (positions + HALVES - 1) / HALVES * HALVES, dims = (head_dim + HALVES - 1) / HALVES * HALVES;
    return padded * (dims + 2) + ROWS * dims;
}

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

/* Adds `pairs` products of pairs: each pair of a row is broadcast and multiplied by vectors of pairs. */
static inline __attribute__((always_inline)) void multiply(const bf16 *const rows[ROWS], const int32_t *vectors,
                                                           int64_t pairs, __m512 sums[ROWS][VECTORS]) {
    for (int64_t pair = 0; pair < pairs; pair++, vectors += HALVES) {
        __m512bh left = (__m512bh)_mm512_loadu_si512(vectors), right = (__m512bh)_mm512_loadu_si512(vectors + FLOATS);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++) {
            __m512bh both = pair_everywhere(rows[row] + 2 * pair);
            sums[row][0] = _mm512_dpbf16_ps(sums[row][0], left, both);
            sums[row][1] = _mm512_dpbf16_ps(sums[row][1], right, both);
        }
    }
}

/* Computes the scores of positions `begin` .. `stop`, and updates the largest score of each row. Where `is_plain`, a
   constant, there is neither a cap nor a start: rows see every position before theirs. */
static inline __attribute__((always_inline)) void score(const Tile *tile, Softmax *softmax, const int32_t *keys,
                                                        int64_t begin, int64_t stop, int is_plain) {
    __m512 sums[ROWS][VECTORS], most[ROWS];
    for (int row = 0; row < ROWS; row++)
        most[row] = _mm512_set1_ps(softmax->most[row]);
    for (int64_t at = begin; at < stop; at += HALVES) {
        for (int row = 0; row < ROWS; row++)
            for (int v = 0; v < VECTORS; v++)
                sums[row][v] = _mm512_setzero_ps();
        multiply(tile->queries, keys + at * (tile->head_dim / 2), tile->head_dim / 2, sums);
        for (int row = 0; row < ROWS; row++) {
            __mmask32 seen = first_halves(tile->lengths[row] - at);
            for (int v = 0; !is_plain && tile->cap && v < VECTORS; v++)
                sums[row][v] = bend(sums[row][v], tile->scale, tile->cap);
            if (!is_plain && tile->starts[row] > at) {
                __mmask32 hidden = first_halves(tile->starts[row] - at);
                seen &= ~hidden;
                for (int v = 0; v < VECTORS; v++)
                    sums[row][v] = _mm512_mask_mov_ps(sums[row][v], (__mmask16)(hidden >> v * FLOATS),
                                                      _mm512_set1_ps(-__builtin_inff()));
            }
            for (int v = 0; v < VECTORS; v++) {
                _mm512_store_ps(softmax->scores[row] + at - begin + v * FLOATS, sums[row][v]);
                most[row] = _mm512_mask_max_ps(most[row], (__mmask16)(seen >> v * FLOATS), most[row], sums[row][v]);
            }
        }
    }
    for (int row = 0; row < ROWS; row++)
        softmax->most[row] = _mm512_reduce_max_ps(most[row]);
}

/* Turns the scores of positions `begin` .. `stop` into weights, and computes the factors by which earlier sums shrink.
   */
static inline __attribute__((always_inline)) void weigh(const Tile *tile, Softmax *softmax, const int32_t *keys,
                                                        int64_t begin, int64_t stop, int is_plain) {
    const __mmask16 all = (1 << ROWS) - 1;
    float scale = !is_plain && tile->cap ? 1.0f : tile->scale;
    __m512 before = _mm512_maskz_loadu_ps(all, softmax->most);
    score(tile, softmax, keys, begin, stop, is_plain);
    __m512 less = _mm512_sub_ps(before, _mm512_maskz_loadu_ps(all, softmax->most));
    _mm512_mask_storeu_ps(softmax->faded, all, exponential(_mm512_mul_ps(less, _mm512_set1_ps(scale))));
    for (int row = 0; row < ROWS; row++) {
        if (!is_plain && tile->starts[row] >= stop) { /* it sees nothing of this span */
            memset(softmax->weights[row], 0, (stop - begin) * sizeof(bf16));
            softmax->faded[row] = 1.0f;
            continue;
        }
        int64_t count = tile->lengths[row] < stop ? tile->lengths[row] - begin : stop - begin;
        float sum = soften(softmax->scores[row], softmax->weights[row], count, stop - begin, softmax->most[row], scale);
        softmax->sum[row] = softmax->sum[row] * softmax->faded[row] + sum;
    }
}

/* Adds the weighted values of a span to 32 dimensions of the sums, which are first rescaled to the new largest score.
   */
static void gather(const Softmax *softmax, const int32_t *values, int64_t pairs, float *gathered) {
    const bf16 *weights[ROWS];
    __m512 sums[ROWS][VECTORS];
    for (int row = 0; row < ROWS; row++) {
        weights[row] = softmax->weights[row];
        for (int v = 0; v < VECTORS; v++)
            sums[row][v] = _mm512_mul_ps(_mm512_loadu_ps(gathered + (VECTORS * row + v) * FLOATS),
                                         _mm512_set1_ps(softmax->faded[row]));
    }
    multiply(weights, values, pairs, sums);
    for (int row = 0; row < ROWS; row++)
        for (int v = 0; v < VECTORS; v++)
            _mm512_storeu_ps(gathered + (VECTORS * row + v) * FLOATS, sums[row][v]);
}

/* Computes eight rows of one head, and stores the first `count` of them. */
static inline __attribute__((always_inline)) void attend_rows(const Tile *tile, int64_t count, const int32_t *keys,
                                                              const int32_t *values, int64_t padded, float *gathered,
                                                              int is_plain) {
    Softmax softmax;
    int64_t size = tile->head_dim, end = (tile->lengths[ROWS - 1] + HALVES - 1) / HALVES * HALVES;
    memset(gathered, 0, (size + HALVES - 1) / HALVES * HALVES * ROWS * sizeof(float));
    for (int row = 0; row < ROWS; row++)
        softmax.most[row] = -__builtin_inff(), softmax.sum[row] = 0.0f;
    for (int64_t begin = tile->starts[0] / SPAN * SPAN; begin < end; begin += SPAN) {
        int64_t stop = begin + SPAN < end ? begin + SPAN : end;
        weigh(tile, &softmax, keys, begin, stop, is_plain);
        int64_t seen = stop < tile->lengths[ROWS - 1] ? stop : tile->lengths[ROWS - 1];
        for (int64_t d = 0; d < size; d += HALVES)
            gather(&softmax, values + (d * padded + begin * HALVES) / 2, (seen - begin + 1) / 2, gathered + d * ROWS);
    }
    for (int row = 0; row < count; row++) {
        float top = softmax.most[row] * (!is_plain && tile->cap ? 1.0f : tile->scale);
        float share = share_of(tile->attention, tile->head, softmax.sum[row], top);
        for (int64_t d = 0; d < size; d += FLOATS) {
            int64_t place = d / HALVES * HALVES * ROWS + (VECTORS * row + d / FLOATS % 2) * FLOATS;
            __m512 sum = _mm512_loadu_ps(gathered + place);
            store_floats(tile->out[row] + d, first_floats(size - d), _mm512_mul_ps(sum, _mm512_set1_ps(share)));
        }
    }
}

static void attend_tile(const Tile *tile, int64_t count, const int32_t *keys, const int32_t *values, int64_t padded,
                        float *gathered) {
    if (tile->cap || tile->starts[ROWS - 1])
        attend_rows(tile, count, keys, values, padded, gathered, 0);
    else
        attend_rows(tile, count, keys, values, padded, gathered, 1);
}

void attend_chunk(const bf16 *queries, int64_t stride, bf16 *out, const Run *run, const Attention *attention,
                  float *scratch, Share kv_heads) {
    const Cache *cache = &attention->cache;
    /* Positions are counted from the span in which the first row's window begins. */
    int64_t base = first_seen(attention, run->begin) / SPAN * SPAN, begin = run->begin - base;
    int64_t size = cache->head_dim, length = begin + run->rows, heads = cache->kv_heads * cache->group;
    int64_t padded = (length + HALVES - 1) / HALVES * HALVES, dims = (size + HALVES - 1) / HALVES * HALVES;
    int32_t *keys = (int32_t *)(scratch + ROWS * dims), *values = keys + padded * (dims / 2);
    for (int64_t head = kv_heads.begin * cache->group; head < kv_heads.end * cache->group; head++) {
        int64_t place = (head / cache->group * cache->slots + run->slot + base) * size;
        if (head % cache->group == 0 && cache->fp8) {
            pack_keys(1, kept_at(1, cache->keys, place), keys, padded, length, size);
            pack_values(1, kept_at(1, cache->values, place), values, padded, length, size);
        } else if (head % cache->group == 0) {
            pack_keys(0, kept_at(0, cache->keys, place), keys, padded, length, size);
            pack_values(0, kept_at(0, cache->values, place), values, padded, length, size);
        }
        for (int64_t first = 0; first < run->rows; first += ROWS) {
            Tile tile = {.attention = attention, .head_dim = size, .head = head, .scale = scale_of(attention),
                         .cap = (float)attention->cap};
            for (int i = 0; i < ROWS; i++) {
                int64_t row = first + i < run->rows ? first + i : run->rows - 1;
                tile.queries[i] = queries + row * stride + head * size;
                tile.out[i] = out + (row * heads + head) * size;
                tile.starts[i] = first_seen(attention, run->begin + row) - base;
                tile.lengths[i] = seen_by(run, row) - base;
            }
            int64_t count = run->rows - first < ROWS ? run->rows - first : ROWS;
            attend_tile(&tile, count, keys, values, padded, scratch);
        }
    }
}

#include "../end_target.h"
#endif
