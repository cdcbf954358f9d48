/* A matrix times rows: few of them as fast as the matrix comes from memory, many as fast as this CPU multiplies. It lies
   as oneDNN lays it out, and each sum is taken in oneDNN's order, so that both give the same bits. */
#include "avx512.h"

#define COLUMNS 64 /* that lie together: [64 columns, pair of inputs, column, of the pair] */
#define VECTORS 4
#define GROUP 6 /* rows whose sums for 64 columns are kept in registers */
#define MOST 66 /* rows at a time, of which sums are kept beyond a span */
#define BLOCK (8 * MOST) /* rows that stay in the cache while the matrix goes by */

/* What rows share: of 64 columns a span of inputs, in the cache once the first rows have used it; and what follows. */
typedef struct {
    const Linear *linear;
    const bf16 *matrix, *next;
    int64_t column, first, stop;
} Part;

/* Rows one after the other: what their spans gave until now, what is added to it at last, and where that goes. */
typedef struct {
    const bf16 *in, *residual;
    bf16 *out;
    float *sums;
} Rows;

static inline Rows rows_after(const Rows *rows, const Linear *linear, int64_t count) {
    const bf16 *residual = rows->residual ? rows->residual + count * linear->out : NULL;
    return (Rows){rows->in + count * linear->in, residual, rows->out + count * linear->out, rows->sums + count * COLUMNS};
}

/* Asks for the memory in which rows end: it comes while they are computed. */
static inline __attribute__((always_inline)) void expect(const Part *part, const Rows *rows, int count) {
    for (int row = 0; row < count; row++)
        for (int64_t half = 0; half < COLUMNS; half += HALVES) {
            int64_t at = row * part->linear->out + part->column + half;
            _mm_prefetch((const char *)(rows->out + at), _MM_HINT_T0);
            if (rows->residual)
                _mm_prefetch((const char *)(rows->residual + at), _MM_HINT_T0);
        }
}

/* The sums of a row's 32 columns from `column` on. */
static inline __attribute__((always_inline)) void finish(const Linear *linear, const Rows *rows, int64_t row,
                                                         int64_t column, __m512 low, __m512 high) {
    int64_t at = row * linear->out + column;
    __mmask32 mask = first_halves(linear->out - column);
    __mmask16 left = (__mmask16)mask, right = (__mmask16)(mask >> FLOATS);
    if (linear->bias) {
        low = _mm512_add_ps(low, load_floats(left, linear->bias + column));
        high = _mm512_add_ps(high, load_floats(right, linear->bias + column + FLOATS));
    }
    if (rows->residual) {
        low = _mm512_add_ps(low, load_floats(left, rows->residual + at));
        high = _mm512_add_ps(high, load_floats(right, rows->residual + at + FLOATS));
    }
    __m512i result = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    if (mask == 0xffffffffu) /* A store without a mask is the faster one. */
        _mm512_storeu_si512(rows->out + at, result);
    else
        _mm512_mask_storeu_epi16(rows->out + at, mask, result);
}

/* Adds up for `count` rows and the first `vectors` of columns, one pair of inputs after the other; with each, `lines` of
   what is `ahead` are asked for. */
static inline __attribute__((always_inline)) void multiply(const Part *part, const Rows *rows, const char *ahead,
                                                           int64_t lines, int count, int vectors) {
    __m512 kept[GROUP][VECTORS]; /* in registers only where every loop over them is unrolled */
    int64_t in = part->linear->in;
    int is_last = part->stop == in;
    if (is_last)
        expect(part, rows, count);
#pragma GCC unroll 6
    for (int row = 0; row < count; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            kept[row][v] = _mm512_setzero_ps();
    for (int64_t i = part->first; i < part->stop; i += 2) {
        __m512bh column[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            column[v] = (__m512bh)_mm512_loadu_si512(part->matrix + i * COLUMNS + v * HALVES);
        for (int64_t line = 0; line < lines; line++, ahead += 64)
            _mm_prefetch(ahead, _MM_HINT_T1);
#pragma GCC unroll 6
        for (int row = 0; row < count; row++) {
            const bf16 *at = rows->in + row * in + i;
            /* Of an odd number of inputs the last has no neighbour. */
            __m512bh both = i + 1 < in ? pair_everywhere(at) : (__m512bh)_mm512_set1_epi32(*at);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                kept[row][v] = _mm512_dpbf16_ps(kept[row][v], column[v], both);
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < count; row++) {
        float *sums = rows->sums + row * COLUMNS;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            if (part->first)
                kept[row][v] = _mm512_add_ps(_mm512_loadu_ps(sums + v * FLOATS), kept[row][v]);
        if (is_last)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v += 2)
                finish(part->linear, rows, row, part->column + v * FLOATS, kept[row][v], kept[row][v + 1]);
        else
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                _mm512_storeu_ps(sums + v * FLOATS, kept[row][v]);
    }
}

/* In even groups. For few rows the CPU itself reads ahead, and best where it is left alone. With more, memory pauses
   while they compute: so they ask for what follows meanwhile, each group for its share. */
static inline __attribute__((always_inline)) void multiply_part(const Part *part, Rows rows, int64_t count, int vectors) {
    int64_t groups = (count + GROUP - 1) / GROUP;
    int64_t left = count < GROUP ? 0 : VECTORS, share = (VECTORS + groups - 1) / groups;
    const char *ahead = (const char *)part->next;
    for (int64_t size; groups > 0; groups--, count -= size, rows = rows_after(&rows, part->linear, size)) {
        int64_t lines = share < left ? share : left;
        size = (count + groups - 1) / groups;
        switch (size) {
        case 1: multiply(part, &rows, ahead, lines, 1, vectors); break;
        case 2: multiply(part, &rows, ahead, lines, 2, vectors); break;
        case 3: multiply(part, &rows, ahead, lines, 3, vectors); break;
        case 4: multiply(part, &rows, ahead, lines, 4, vectors); break;
        case 5: multiply(part, &rows, ahead, lines, 5, vectors); break;
        default: multiply(part, &rows, ahead, lines, 6, vectors); break;
        }
        ahead += lines * 64 * ((part->stop - part->first) / 2);
        left -= lines;
    }
}

/* 64 columns of at most MOST rows. */
static void multiply_columns(const Linear *linear, int64_t column, const Rows *rows, int64_t count) {
    int64_t padded = (linear->in + HALVES - 1) / HALVES * HALVES;
    Part part = {.linear = linear, .matrix = linear->matrix + column * padded, .column = column};
    for (; part.first < linear->in; part.first = part.stop) {
        part.next = part.matrix + (part.first + linear->span) * COLUMNS;
        part.stop = linear->in - part.first < linear->span ? linear->in : part.first + linear->span;
        /* The last columns are often no more than half as many: then half the work is enough. */
        if (linear->out - column > COLUMNS / 2)
            multiply_part(&part, *rows, count, VECTORS);
        else
            multiply_part(&part, *rows, count, VECTORS / 2);
    }
}

void multiply_rows(const Linear *linear, const bf16 *in, const bf16 *residual, bf16 *out, int64_t count) {
    float sums[MOST * COLUMNS];
    const Rows all = {in, residual, out, sums};
    for (int64_t block = 0; block < count; block += BLOCK)
        for (int64_t column = 0; column < linear->out; column += COLUMNS)
            for (int64_t row = block; row < count && row < block + BLOCK; row += MOST) {
                Rows rows = rows_after(&all, linear, row);
                rows.sums = sums;
                multiply_columns(linear, column, &rows, count - row < MOST ? count - row : MOST);
            }
}
