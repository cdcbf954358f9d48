/* Attention of a chunk of a prompt: the keys and values of a head are packed once for all of its rows. */
#ifdef __x86_64__
#include "../power.h"
#include "operations.h"
#include "vectors.h"

#include "kept.h"
#include "means.h"
#include "pack_kept.h"

/* Sums of ROWS rows, VECTORS vectors each, are kept in registers. */
#define ROWS 8
#define VECTORS 2
#define SPAN 512 /* positions whose scores are in the cache at a time; spans begin at multiples of it */

/* Rows that are computed together: the addresses of their queries and results, and the positions that each sees, from
   one of `starts` up to one of `lengths`. `scale` and `cap` are those of Attention, `head` is their query head. */
typedef struct {
    const Attention *attention;
    const void *queries[ROWS]; /* in float32 for FMA, of an even number of dimensions */
    bf16 *out[ROWS];
    int64_t starts[ROWS], lengths[ROWS], head_dim, head;
    float scale, cap;
    Means means;
} Tile;

/* The state of each row: the largest score so far, the weights of a span relative to it, and the sum of all weights.
   `faded` is the factor by which earlier sums shrink (online softmax, Milakov and Gimelshein). For FMA, weights are put
   in float32 where their scores were. */
typedef struct {
    _Alignas(64) float scores[ROWS][SPAN];
    _Alignas(64) bf16 weights[ROWS][SPAN];
    float most[ROWS], sum[ROWS], faded[ROWS];
} Softmax;

int64_t scratch_floats(int64_t positions, int64_t head_dim) {
    int64_t padded = (positions + HALVES - 1) / HALVES * HALVES, dims = (head_dim + HALVES - 1) / HALVES * HALVES;
    return padded * (dims + 2) + 2 * ROWS * dims;
}

/* Adds `pairs` products of pairs: each pair of a row is broadcast and multiplied by vectors of pairs. */
ALWAYS_INLINE void multiply(Means means, const void *const rows[ROWS], const int32_t *vectors, int64_t pairs,
                            __m512 sums[ROWS][VECTORS]) {
    for (int64_t pair = 0; pair < pairs; pair++, vectors += HALVES) {
        __m512i left = _mm512_loadu_si512(vectors), right = _mm512_loadu_si512(vectors + FLOATS);
        if (means == DOTS) {
#pragma GCC unroll 8
            for (int row = 0; row < ROWS; row++) {
                __m512bh both = pair_everywhere((const bf16 *)rows[row] + 2 * pair);
                sums[row][0] = _mm512_dpbf16_ps(sums[row][0], (__m512bh)left, both);
                sums[row][1] = _mm512_dpbf16_ps(sums[row][1], (__m512bh)right, both);
            }
            continue;
        }
#pragma GCC unroll 2
        for (int second = 1; second >= 0; second--) {
            __m512 lefts = second ? second_of(left) : first_of(left);
            __m512 rights = second ? second_of(right) : first_of(right);
#pragma GCC unroll 8
            for (int row = 0; row < ROWS; row++) {
                __m512 one = _mm512_set1_ps(((const float *)rows[row])[2 * pair + second]);
                sums[row][0] = _mm512_fmadd_ps(lefts, one, sums[row][0]);
                sums[row][1] = _mm512_fmadd_ps(rights, one, sums[row][1]);
            }
        }
    }
}

/* Adds products to the sums of each row at `to`, `stride` apart, or makes them if `is_first`. */
ALWAYS_INLINE void add_to(Means means, const void *const rows[ROWS], const int32_t *vectors, int64_t pairs, float *to,
                          int64_t stride, int is_first) {
    __m512 sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            sums[row][v] = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(to + row * stride + v * FLOATS);
    multiply(means, rows, vectors, pairs, sums);
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++)
            _mm512_storeu_ps(to + row * stride + v * FLOATS, sums[row][v]);
}

/* The products of queries and the keys of positions `begin` .. `stop`. */
typedef void Score(const Tile *tile, const int32_t *keys, int64_t begin, int64_t stop, float scores[ROWS][SPAN]);

/* Adds weighted values to 32 dimensions of the sums. */
typedef void Gather(const void *const weights[ROWS], const int32_t *values, int64_t pairs, float *gathered);

#define MEANS(means)                                                                                                   \
    static __attribute__((noinline)) void score_##means(const Tile *tile, const int32_t *keys, int64_t begin,          \
                                                        int64_t stop, float scores[ROWS][SPAN]) {                      \
        int64_t pairs = tile->head_dim / 2;                                                                            \
        for (int64_t at = begin; at < stop; at += HALVES)                                                              \
            add_to(means, tile->queries, keys + at * pairs, pairs, scores[0] + at - begin, SPAN, 1);                   \
    }                                                                                                                  \
    static __attribute__((noinline)) void gather_##means(const void *const weights[ROWS], const int32_t *values,       \
                                                         int64_t pairs, float *gathered) {                             \
        add_to(means, weights, values, pairs, gathered, VECTORS * FLOATS, 0);                                          \
    }

MEANS(DOTS)
MEANS(FMA)

static Score *const scores_by[] = {[DOTS] = score_DOTS, [FMA] = score_FMA};
static Gather *const gathers_by[] = {[DOTS] = gather_DOTS, [FMA] = gather_FMA};

/* Computes the scores of positions `begin` .. `stop`, and updates the largest score of each row. Where `is_plain`, a
   constant, there is neither a cap nor a start: rows see every position before theirs. */
static inline __attribute__((always_inline)) void score(const Tile *tile, Softmax *softmax, const int32_t *keys,
                                                        int64_t begin, int64_t stop, int is_plain) {
    uint32_t before = begin_sums(tile->means);
    scores_by[tile->means](tile, keys, begin, stop, softmax->scores);
    _mm_setcsr(before);
    for (int row = 0; row < ROWS; row++) {
        __m512 sums[VECTORS], most = _mm512_set1_ps(softmax->most[row]);
        for (int64_t at = begin; at < stop; at += HALVES) {
            float *scores = softmax->scores[row] + at - begin;
            __mmask32 seen = first_halves(tile->lengths[row] - at);
            for (int v = 0; v < VECTORS; v++)
                sums[v] = _mm512_load_ps(scores + v * FLOATS);
            for (int v = 0; !is_plain && tile->cap && v < VECTORS; v++)
                sums[v] = bend(sums[v], tile->scale, tile->cap);
            if (!is_plain && tile->starts[row] > at) {
                __mmask32 hidden = first_halves(tile->starts[row] - at);
                seen &= ~hidden;
                for (int v = 0; v < VECTORS; v++)
                    sums[v] = _mm512_mask_mov_ps(sums[v], (__mmask16)(hidden >> v * FLOATS),
                                                 _mm512_set1_ps(-__builtin_inff()));
            }
            for (int v = 0; v < VECTORS; v++) {
                if (!is_plain)
                    _mm512_store_ps(scores + v * FLOATS, sums[v]);
                most = _mm512_mask_max_ps(most, (__mmask16)(seen >> v * FLOATS), most, sums[v]);
            }
        }
        softmax->most[row] = _mm512_reduce_max_ps(most);
    }
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

/* Adds the weighted values of a span to the sums of all dimensions, which are first rescaled to the new largest score. */
static void gather(const Tile *tile, Softmax *softmax, const int32_t *values, int64_t stride, int64_t pairs,
                   float *gathered) {
    const void *weights[ROWS];
    for (int row = 0; row < ROWS; row++) {
        weights[row] = softmax->weights[row];
        if (tile->means == FMA) {
            weights[row] = softmax->scores[row];
            for (int64_t i = 0; i < 2 * pairs; i += FLOATS)
                _mm512_store_ps(softmax->scores[row] + i, load_floats(ALL, softmax->weights[row] + i));
        }
    }
    for (int64_t d = 0; d < tile->head_dim; d += HALVES) {
        float *sums = gathered + d * ROWS;
        for (int i = 0; i < ROWS * VECTORS; i++) {
            __m512 faded = _mm512_set1_ps(softmax->faded[i / VECTORS]);
            _mm512_storeu_ps(sums + i * FLOATS, _mm512_mul_ps(_mm512_loadu_ps(sums + i * FLOATS), faded));
        }
        uint32_t before = begin_sums(tile->means);
        gathers_by[tile->means](weights, values + d / 2 * stride, pairs, sums);
        _mm_setcsr(before);
    }
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
        gather(tile, &softmax, values + begin * HALVES / 2, padded, (seen - begin + 1) / 2, gathered);
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

static const float *widened_query(const bf16 *query, int64_t size, float *to) {
    for (int64_t d = 0; d < size; d += FLOATS)
        _mm512_storeu_ps(to + d, load_floats(first_floats(size - d), query + d));
    return to;
}

void attend_chunk(Means means, const bf16 *queries, int64_t stride, bf16 *out, const Run *run,
                  const Attention *attention, float *scratch, Share kv_heads) {
    const Cache *cache = &attention->cache;
    /* Positions are counted from the span in which the first row's window begins. */
    int64_t base = first_seen(attention, run->begin) / SPAN * SPAN, begin = run->begin - base;
    int64_t size = cache->head_dim, length = begin + run->rows, heads = cache->kv_heads * cache->group;
    int64_t padded = (length + HALVES - 1) / HALVES * HALVES, dims = (size + HALVES - 1) / HALVES * HALVES;
    float *widened = scratch + ROWS * dims;
    int32_t *keys = (int32_t *)(widened + ROWS * dims), *values = keys + padded * (dims / 2);
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
                         .cap = (float)attention->cap, .means = means};
            for (int i = 0; i < ROWS; i++) {
                int64_t row = first + i < run->rows ? first + i : run->rows - 1;
                tile.queries[i] = queries + row * stride + head * size;
                if (means == FMA)
                    tile.queries[i] = widened_query(tile.queries[i], size, widened + i * dims);
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
