/* Sums up the products of some rows and one span of a panel, in the order of pairs of inputs. */
#ifdef __x86_64__
#include "../panel.h"
#include "operations.h"
#include "vectors.h"

#include "piece.h"

/* The sums of a group of rows stay in registers only if every loop over them is unrolled. */
typedef __m512 Kept[GROUP][VECTORS];

/* Adds the products of the pair of inputs `i` by VDPBF16PS; the last of an odd number has no partner. */
ALWAYS_INLINE void add_dots(const bf16 *matrix, const Rows *rows, int64_t in, int64_t i, int has_partner, Kept kept,
                            int count, int vectors) {
    __m512bh column[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
        column[v] = (__m512bh)_mm512_loadu_si512(matrix + v * HALVES);
#pragma GCC unroll 6
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
#pragma GCC unroll 6
        for (int row = 0; row < count; row++) {
            __m512 input = _mm512_set1_ps(rows->floats[row * padded(in, 2) + i + second]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                kept[row][v] = _mm512_fmadd_ps(column[v], input, kept[row][v]);
        }
    }
}

ALWAYS_INLINE void sum_span(Means means, const Piece *piece, const Rows *rows, const char *ahead, int64_t lines,
                            float *made, int count, int vectors) {
    Kept kept;
    int64_t in = piece->linear->in, even = piece->stop / 2 * 2;
    if (piece->stop == in)
        expect(piece, rows, count);
#pragma GCC unroll 6
    for (int row = 0; row < count; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            kept[row][v] = _mm512_setzero_ps();
    for (int64_t i = piece->first; i < even; i += 2) {
        if (means == FMA)
            add_fma(piece->matrix + i * COLUMNS, rows, in, i, kept, count, vectors);
        else
            add_dots(piece->matrix + i * COLUMNS, rows, in, i, 1, kept, count, vectors);
        for (int64_t line = 0; line < lines; line++, ahead += 64)
            _mm_prefetch(ahead, _MM_HINT_T1);
    }
    if (even < piece->stop && means == FMA)
        add_fma(piece->matrix + even * COLUMNS, rows, in, even, kept, count, vectors);
    else if (even < piece->stop)
        add_dots(piece->matrix + even * COLUMNS, rows, in, even, 0, kept, count, vectors);
#pragma GCC unroll 6
    for (int row = 0; row < count; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            _mm512_store_ps(made + row * COLUMNS + v * FLOATS, kept[row][v]);
}

/* A function for each number of rows, so that registers are assigned well, and for whole and half panels. */
#define SUM_SPAN(means, count, vectors)                                                                                \
    static __attribute__((noinline)) void means##_##count##_##vectors(                                                 \
        const Piece *piece, const Rows *rows, const char *ahead, int64_t lines, float *made) {                         \
        sum_span(means, piece, rows, ahead, lines, made, count, vectors);                                              \
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

#include "../end_target.h"
#endif
