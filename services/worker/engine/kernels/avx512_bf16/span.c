/* Sums up the products of some rows and one span of a panel, in the order of pairs of inputs. */
#ifdef __x86_64__
#include "../panel.h"
#include "operations.h"
#include "vectors.h"

#include "piece.h"

/* The sums of a group of rows stay in registers only if every loop over them is unrolled. */
typedef __m512 Kept[WIDE][VECTORS];

#define BLOCK_INPUTS 128 /* of which both halves of a panel are used in turn */

/* Adds the products of the pair of inputs `i` by VDPBF16PS; the last of an odd number has no partner. */
ALWAYS_INLINE void add_dots(const bf16 *matrix, const Rows *rows, int64_t in, int64_t i, int has_partner, Kept kept,
                            int count, int vectors) {
    __m512bh column[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
        column[v] = (__m512bh)_mm512_loadu_si512(matrix + v * HALVES);
#pragma GCC unroll 12
    for (int row = 0; row < count; row++) {
        const bf16 *at = rows->in + row * in + i;
        __m512bh both = has_partner ? pair_everywhere(at) : (__m512bh)_mm512_set1_epi32(*at);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            kept[row][v] = _mm512_dpbf16_ps(kept[row][v], column[v], both);
    }
}

/* The same by FMA: first the second inputs of the pairs. */
ALWAYS_INLINE void add_fma(const bf16 *matrix, const Rows *rows, int64_t in, int64_t i, Kept kept, int count,
                           int vectors) {
#pragma GCC unroll 2
    for (int second = 1; second >= 0; second--) {
        __m512 column[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            __m512i own = _mm512_loadu_si512(matrix + v * HALVES);
            column[v] = second ? second_of(own) : first_of(own);
        }
#pragma GCC unroll 12
        for (int row = 0; row < count; row++) {
            __m512 input = _mm512_set1_ps(rows->floats[row * padded(in, 2) + i + second]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                kept[row][v] = _mm512_fmadd_ps(column[v], input, kept[row][v]);
        }
    }
}

/* Into the nearest cache for dot products: with prefetches into the next one AMD's CPUs take a tenth longer. */
ALWAYS_INLINE void prefetch_for(Means means, const char *line) {
    if (means == DOTS)
        _mm_prefetch(line, _MM_HINT_T0);
    else
        _mm_prefetch(line, _MM_HINT_T1);
}

/* Adds the products of inputs `begin` to `stop`. Returns what is to be prefetched after them. */
ALWAYS_INLINE const char *add_pairs(Means means, const bf16 *matrix, const Rows *rows, int64_t in, int64_t begin,
                                    int64_t stop, const char *ahead, int64_t lines, Kept kept, int count,
                                    int vectors) {
    int64_t even = stop / 2 * 2;
    for (int64_t i = begin; i < even; i += 2) {
        if (means == FMA)
            add_fma(matrix + i * COLUMNS, rows, in, i, kept, count, vectors);
        else
            add_dots(matrix + i * COLUMNS, rows, in, i, 1, kept, count, vectors);
        for (int64_t line = 0; line < lines; line++, ahead += 64)
            prefetch_for(means, ahead);
    }
    if (even < stop && means == FMA)
        add_fma(matrix + even * COLUMNS, rows, in, even, kept, count, vectors);
    else if (even < stop)
        add_dots(matrix + even * COLUMNS, rows, in, even, 0, kept, count, vectors);
    return ahead;
}

ALWAYS_INLINE void begin_sum(Kept kept, const float *made, int count, int vectors) {
#pragma GCC unroll 12
    for (int row = 0; row < count; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            kept[row][v] = made ? _mm512_load_ps(made + row * COLUMNS + v * FLOATS) : _mm512_setzero_ps();
}

ALWAYS_INLINE void end_sum(Kept kept, float *made, int count, int vectors) {
#pragma GCC unroll 12
    for (int row = 0; row < count; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            _mm512_store_ps(made + row * COLUMNS + v * FLOATS, kept[row][v]);
}

ALWAYS_INLINE void sum_span(Means means, const Piece *piece, const Rows *rows, const char *ahead, int64_t lines,
                            float *made, int count, int vectors) {
    Kept kept;
    int64_t in = piece->linear->in;
    if (piece->stop == in)
        expect(piece, rows, count);
    begin_sum(kept, NULL, count, vectors);
    add_pairs(means, piece->matrix, rows, in, piece->first, piece->stop, ahead, lines, kept, count, vectors);
    end_sum(kept, made, count, vectors);
}

/* The same by dot products for up to WIDE rows: of each block of inputs first for one half of the columns, then for the
   other. So all rows use what comes from memory at once. */
ALWAYS_INLINE void sum_wide_span(const Piece *piece, const Rows *rows, const char *ahead, int64_t lines, float *made,
                                 int count) {
    int64_t in = piece->linear->in, halves = piece->width > COLUMNS / 2 ? 2 : 1;
    if (piece->stop == in)
        expect(piece, rows, count);
    for (int64_t begin = piece->first, stop; begin < piece->stop; begin = stop) {
        stop = piece->stop - begin < BLOCK_INPUTS ? piece->stop : begin + BLOCK_INPUTS;
        for (int64_t half = 0; half < halves; half++) {
            Kept kept;
            float *sums = made + half * COLUMNS / 2;
            begin_sum(kept, begin == piece->first ? NULL : sums, count, VECTORS / 2);
            ahead = add_pairs(DOTS, piece->matrix + half * COLUMNS, rows, in, begin, stop, ahead,
                              half ? lines / 2 : lines - lines / 2, kept, count, VECTORS / 2);
            end_sum(kept, sums, count, VECTORS / 2);
        }
    }
}

/* A function for each number of rows, so that registers are assigned well, and for whole and half panels. */
#define SUM_SPAN(means, count, vectors)                                                                                \
    static __attribute__((noinline)) void means##_##count##_##vectors(                                                 \
        const Piece *piece, const Rows *rows, const char *ahead, int64_t lines, float *made) {                         \
        sum_span(means, piece, rows, ahead, lines, made, count, vectors);                                              \
    }
#define SUM_WIDE_SPAN(count)                                                                                           \
    static __attribute__((noinline)) void wide_##count(const Piece *piece, const Rows *rows, const char *ahead,        \
                                                       int64_t lines, float *made) {                                   \
        sum_wide_span(piece, rows, ahead, lines, made, count);                                                         \
    }
#define SUM_SPANS(means, vectors)                                                                                      \
    SUM_SPAN(means, 1, vectors) SUM_SPAN(means, 2, vectors) SUM_SPAN(means, 3, vectors)                                \
    SUM_SPAN(means, 4, vectors) SUM_SPAN(means, 5, vectors) SUM_SPAN(means, 6, vectors)
#define NAMES(means, vectors)                                                                                          \
    {means##_1_##vectors, means##_2_##vectors, means##_3_##vectors,                                                    \
     means##_4_##vectors, means##_5_##vectors, means##_6_##vectors}

SUM_SPANS(DOTS, 2)
SUM_SPANS(DOTS, 4)
SUM_SPANS(FMA, 2)
SUM_SPANS(FMA, 4)

SumSpan *const span_sums[][2][GROUP] = {[DOTS] = {NAMES(DOTS, 2), NAMES(DOTS, 4)},
                                        [FMA] = {NAMES(FMA, 2), NAMES(FMA, 4)}};

SUM_WIDE_SPAN(1) SUM_WIDE_SPAN(2) SUM_WIDE_SPAN(3) SUM_WIDE_SPAN(4) SUM_WIDE_SPAN(5) SUM_WIDE_SPAN(6)
SUM_WIDE_SPAN(7) SUM_WIDE_SPAN(8) SUM_WIDE_SPAN(9) SUM_WIDE_SPAN(10) SUM_WIDE_SPAN(11) SUM_WIDE_SPAN(12)

SumSpan *const wide_span_sums[WIDE] = {wide_1, wide_2, wide_3, wide_4,  wide_5,  wide_6,
                                       wide_7, wide_8, wide_9, wide_10, wide_11, wide_12};

#include "../end_target.h"
#endif
