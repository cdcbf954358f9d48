/* Rows times a matrix: few of them as fast as the matrix comes from memory, many as fast as this CPU multiplies. Inputs are
   taken in spans; within a span pairs of inputs are added one after the other by VDPBF16PS, and spans are added in order. */
#ifdef __x86_64__
#include "../panel.h"
#include "operations.h"
#include "vectors.h"

#define COLUMNS PANEL
#define VECTORS 4
#define GROUP 6 /* rows whose sums for 64 columns are kept in registers */
#define MOST 66 /* rows at a time, of which sums are kept beyond a span */
#define BLOCK (8 * MOST) /* rows that stay in the cache while the matrix goes by */

/* What rows share: of a panel the inputs `first` to `stop`, which are in the cache once the first rows have used them, and
   what follows in memory. `column` is the panel's first output, of `width`. */
typedef struct {
    const Linear *linear;
    const bf16 *matrix, *bias, *next;
    int64_t column, width, first, stop;
} Piece;

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
static inline __attribute__((always_inline)) void expect(const Piece *piece, const Rows *rows, int count) {
    for (int row = 0; row < count; row++)
        for (int64_t half = 0; half < COLUMNS; half += HALVES) {
            int64_t at = row * piece->linear->out + piece->column + half;
            _mm_prefetch((const char *)(rows->out + at), _MM_HINT_T0);
            if (rows->residual)
                _mm_prefetch((const char *)(rows->residual + at), _MM_HINT_T0);
        }
}

/* The sums of a row's 32 columns, the panel's from `first` on. */
static inline __attribute__((always_inline)) void finish(const Piece *piece, const Rows *rows, int64_t row, int64_t first,
                                                         __m512 low, __m512 high) {
    int64_t at = row * piece->linear->out + piece->column + first;
    __mmask32 mask = first_halves(piece->width - first);
    __mmask16 left = (__mmask16)mask, right = (__mmask16)(mask >> FLOATS);
    if (piece->bias) {
        low = _mm512_add_ps(low, load_floats(left, piece->bias + first));
        high = _mm512_add_ps(high, load_floats(right, piece->bias + first + FLOATS));
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
static inline __attribute__((always_inline)) void multiply(const Piece *piece, const Rows *rows, const char *ahead,
                                                           int64_t lines, int count, int vectors) {
    __m512 kept[GROUP][VECTORS]; /* in registers only where every loop over them is unrolled */
    int64_t in = piece->linear->in;
    int is_last = piece->stop == in;
    if (is_last)
        expect(piece, rows, count);
#pragma GCC unroll 6
    for (int row = 0; row < count; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            kept[row][v] = _mm512_setzero_ps();
    for (int64_t i = piece->first; i < piece->stop; i += 2) {
        __m512bh column[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            column[v] = (__m512bh)_mm512_loadu_si512(piece->matrix + i * COLUMNS + v * HALVES);
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
            if (piece->first)
                kept[row][v] = _mm512_add_ps(_mm512_loadu_ps(sums + v * FLOATS), kept[row][v]);
        if (is_last)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v += 2)
                finish(piece, rows, row, v * FLOATS, kept[row][v], kept[row][v + 1]);
        else
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                _mm512_storeu_ps(sums + v * FLOATS, kept[row][v]);
    }
}

/* In even groups. For few rows the CPU itself reads ahead, and best where it is left alone. With more, memory pauses
   while they compute: so they ask for what follows meanwhile, each group for its share. */
static inline __attribute__((always_inline)) void multiply_piece(const Piece *piece, Rows rows, int64_t count, int vectors) {
    int64_t groups = (count + GROUP - 1) / GROUP;
    int64_t left = count < GROUP ? 0 : VECTORS, share = (VECTORS + groups - 1) / groups;
    const char *ahead = (const char *)piece->next;
    for (int64_t size; groups > 0; groups--, count -= size, rows = rows_after(&rows, piece->linear, size)) {
        int64_t lines = share < left ? share : left;
        size = (count + groups - 1) / groups;
        switch (size) {
        case 1: multiply(piece, &rows, ahead, lines, 1, vectors); break;
        case 2: multiply(piece, &rows, ahead, lines, 2, vectors); break;
        case 3: multiply(piece, &rows, ahead, lines, 3, vectors); break;
        case 4: multiply(piece, &rows, ahead, lines, 4, vectors); break;
        case 5: multiply(piece, &rows, ahead, lines, 5, vectors); break;
        default: multiply(piece, &rows, ahead, lines, 6, vectors); break;
        }
        ahead += lines * 64 * ((piece->stop - piece->first) / 2);
        left -= lines;
    }
}

/* Of how many inputs a sum is taken before it is added to the others. Half of what the nearest cache holds of a panel:
   all variants that were ever released have had it so. */
static int64_t span_of(int64_t inputs) { return inputs <= 1024 ? 512 : 1024; }

/* One panel and at most MOST rows. */
static void multiply_panel(const Linear *linear, const Panel *panel, const Rows *rows, int64_t count) {
    int64_t span = span_of(linear->in);
    Piece piece = {.linear = linear, .matrix = panel->numbers, .bias = panel->bias, .column = panel->column,
                   .width = panel->width};
    for (; piece.first < linear->in; piece.first = piece.stop) {
        piece.next = piece.matrix + (piece.first + span) * COLUMNS;
        piece.stop = linear->in - piece.first < span ? linear->in : piece.first + span;
        /* The last columns are often no more than half as many: then half the work is enough. */
        if (panel->width > COLUMNS / 2)
            multiply_piece(&piece, *rows, count, VECTORS);
        else
            multiply_piece(&piece, *rows, count, VECTORS / 2);
    }
}

void multiply_by_dot_products(const Linear *linear, const void *in, const void *residual, void *out, int64_t count,
                              Share panels) {
    float sums[MOST * COLUMNS];
    const Rows all = {in, residual, out, sums};
    for (int64_t block = 0; block < count; block += BLOCK)
        for (int64_t number = panels.begin; number < panels.end; number++) {
            Panel panel = find_panel(BFLOAT16, linear, number);
            for (int64_t row = block; row < count && row < block + BLOCK; row += MOST) {
                Rows rows = rows_after(&all, linear, row);
                rows.sums = sums;
                multiply_panel(linear, &panel, &rows, count - row < MOST ? count - row : MOST);
            }
        }
}

#include "../end_target.h"
#endif
