/* Attention of a prompt's chunk: keys and values of a head are laid out once for all of its rows. */
#include "avx512.h"

/* Rows, and vectors of each, of which sums are kept in registers. */
#define ROWS 8
#define VECTORS 2

int64_t scratch_floats(int64_t positions, int64_t head_dim) {
    int64_t padded = (positions + HALVES - 1) / HALVES * HALVES, dims = (head_dim + HALVES - 1) / HALVES * HALVES;
    return padded * (ROWS + ROWS / 2 + dims);
}

/* [position, dimension] -> [32 positions, pair of dimensions, position, of the pair]: zeros where there is none. */
static void pack_keys(const bf16 *keys, int32_t *packed, int64_t length, int64_t head_dim) {
    int64_t pairs = head_dim / 2;
    for (int64_t tile = 0; tile < length; tile += HALVES, packed += pairs * HALVES)
        for (int64_t i = 0; i < HALVES; i++)
            for (int64_t pair = 0; pair < pairs; pair++) {
                int32_t both = 0;
                if (tile + i < length)
                    memcpy(&both, keys + (tile + i) * head_dim + 2 * pair, sizeof both);
                packed[pair * HALVES + i] = both;
            }
}

/* [position, dimension] -> [32 dimensions, pair of positions, dimension, of the pair], in the order in which
   `unpack` leaves them; zeros where there is none. */
static void pack_values(const bf16 *values, int32_t *packed, int64_t padded, int64_t length, int64_t head_dim) {
    const __m512i begin = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), end = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (int64_t d = 0; d < head_dim; d += HALVES)
        for (int64_t i = 0; i < padded; i += 2, packed += HALVES) {
            __mmask32 mask = first_halves(head_dim - d);
            __m512i even = (__m512i)load_halves(i < length ? mask : 0, values + i * head_dim + d);
            __m512i odd = (__m512i)load_halves(i + 1 < length ? mask : 0, values + (i + 1) * head_dim + d);
            __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
            _mm512_storeu_si512(packed, _mm512_permutex2var_epi64(low, begin, high));
            _mm512_storeu_si512(packed + FLOATS, _mm512_permutex2var_epi64(low, end, high));
        }
}

/* `sums[row]` = sum of `pairs` products of two: of each row's pairs, broadcast, and vectors of pairs. */
static inline __attribute__((always_inline)) void multiply(const bf16 *const rows[ROWS], const int32_t *vectors,
                                                           int64_t pairs, __m512 sums[ROWS][VECTORS]) {
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            sums[row][v] = _mm512_setzero_ps();
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

/* Eight rows of one head, the last at position `length - 1`. Of `count` rows the results are kept. */
static void attend_rows(const bf16 *const queries[ROWS], bf16 *const out[ROWS], const int64_t lengths[ROWS],
                        int64_t count, const int32_t *keys, const int32_t *values, int64_t padded_values,
                        int64_t head_dim, float *scratch) {
    int64_t padded = (lengths[ROWS - 1] + HALVES - 1) / HALVES * HALVES;
    bf16 *weights = (bf16 *)(scratch + ROWS * padded);
    const bf16 *weight_rows[ROWS];
    __m512 sums[ROWS][VECTORS], scales[ROWS];
    for (int64_t tile = 0; tile < padded; tile += HALVES) {
        multiply(queries, keys + tile * (head_dim / 2), head_dim / 2, sums);
        for (int row = 0; row < ROWS; row++) {
            _mm512_storeu_ps(scratch + row * padded + tile, sums[row][0]);
            _mm512_storeu_ps(scratch + row * padded + tile + FLOATS, sums[row][1]);
        }
    }
    for (int row = 0; row < ROWS; row++) {
        bf16 *mine = weights + row * padded;
        float sum = soften(scratch + row * padded, mine, lengths[row], 1.0f / __builtin_sqrtf((float)head_dim));
        int64_t known = (lengths[row] + HALVES - 1) / HALVES * HALVES;
        memset(mine + known, 0, (padded - known) * sizeof(bf16));
        scales[row] = _mm512_set1_ps(1.0f / sum);
        weight_rows[row] = mine;
    }
    for (int64_t d = 0; d < head_dim; d += HALVES) {
        multiply(weight_rows, values + d * (padded_values / 2), padded / 2, sums);
        for (int row = 0; row < count; row++) {
            store_floats(out[row] + d, first_floats(head_dim - d), _mm512_mul_ps(sums[row][0], scales[row]));
            if (head_dim - d > FLOATS)
                store_floats(out[row] + d + FLOATS, first_floats(head_dim - d - FLOATS),
                             _mm512_mul_ps(sums[row][1], scales[row]));
        }
    }
}

void attend_chunk(const bf16 *queries, int64_t stride, bf16 *out, const Run *run, const Cache *cache, float *scratch) {
    int64_t size = cache->head_dim, length = run->begin + run->rows, heads = cache->kv_heads * cache->group;
    int64_t padded = (length + HALVES - 1) / HALVES * HALVES, dims = (size + HALVES - 1) / HALVES * HALVES;
    int32_t *keys = (int32_t *)(scratch + padded * (ROWS + ROWS / 2)), *values = keys + padded * (dims / 2);
    for (int64_t head = 0; head < heads; head++) {
        int64_t place = (head / cache->group * cache->slots + run->slot) * size;
        if (head % cache->group == 0) {
            pack_keys(cache->keys + place, keys, length, size);
            pack_values(cache->values + place, values, padded, length, size);
        }
        for (int64_t first = 0; first < run->rows; first += ROWS) {
            const bf16 *from[ROWS];
            bf16 *to[ROWS];
            int64_t lengths[ROWS];
            for (int i = 0; i < ROWS; i++) {
                int64_t row = first + i < run->rows ? first + i : run->rows - 1;
                from[i] = queries + row * stride + head * size;
                to[i] = out + (row * heads + head) * size;
                lengths[i] = run->begin + row + 1;
            }
            int64_t count = run->rows - first < ROWS ? run->rows - first : ROWS;
            attend_rows(from, to, lengths, count, keys, values, padded, size, scratch);
        }
    }
}
