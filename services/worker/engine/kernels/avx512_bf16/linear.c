/* Multiplies rows by a matrix. Few rows run at the speed of memory, many at the speed of the CPU. Inputs are processed
   in spans. Within a span, pairs of inputs are added in order by VDPBF16PS; then spans are added in order. */
#ifdef __x86_64__
#include "../panel.h"
#include "operations.h"
#include "vectors.h"

#include "piece.h"

#include "../workspace.h"

/* Adds the products of one pair of inputs at `in`, from row to row `stride` apart; the last of an odd number has no
   partner. */
static inline __attribute__((always_inline)) void add_pair(const bf16 *matrix, const bf16 *in, int64_t stride,
                                                           int has_partner, __m512 kept[GROUP][VECTORS], int count,
                                                           int vectors) {
    __m512bh column[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
        column[v] = (__m512bh)_mm512_loadu_si512(matrix + v * HALVES);
#pragma GCC unroll 6
    for (int row = 0; row < count; row++, in += stride) {
        __m512bh both = has_partner ? pair_everywhere(in) : (__m512bh)_mm512_set1_epi32(*in);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            kept[row][v] = _mm512_dpbf16_ps(kept[row][v], column[v], both);
    }
}

/* Sums up for `count` rows and the first `vectors` vectors of columns, in the order of pairs of inputs. With each pair,
   `lines` cache lines at `ahead` are prefetched. */
static inline __attribute__((always_inline)) void multiply(const Piece *piece, const Rows *rows, const char *ahead,
                                                           int64_t lines, int count, int vectors) {
    __m512 kept[GROUP][VECTORS]; /* these stay in registers only if every loop over them is unrolled */
    int64_t in = piece->linear->in;
    int is_last = piece->stop == in;
    if (is_last)
        expect(piece, rows, count);
#pragma GCC unroll 6
    for (int row = 0; row < count; row++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            kept[row][v] = _mm512_setzero_ps();
    int64_t even = piece->stop / 2 * 2;
    for (int64_t i = piece->first; i < even; i += 2) {
        add_pair(piece->matrix + i * COLUMNS, rows->in + i, in, 1, kept, count, vectors);
        for (int64_t line = 0; line < lines; line++, ahead += 64)
            _mm_prefetch(ahead, _MM_HINT_T1);
    }
    if (even < piece->stop)
        add_pair(piece->matrix + even * COLUMNS, rows->in + even, in, 0, kept, count, vectors);
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

/* Computes rows in groups of equal size. For few rows the CPU's own prefetching is best. For more, memory would be idle
   while they compute, so each group prefetches its share of what follows. */
static inline __attribute__((always_inline)) void multiply_piece(const Piece *piece, Rows rows, int64_t count,
                                                                 int vectors) {
    int64_t groups = (count + GROUP - 1) / GROUP;
    int64_t left = count < GROUP ? 0 : piece->next_lines, share = (left + groups - 1) / groups;
    const char *ahead = piece->next;
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

/* Multiplies at most MOST rows by one panel. `following` is what comes in memory after a packed one. */
static void multiply_panel(const Linear *linear, const Panel *panel, const char *following, const Rows *rows,
                           int64_t count) {
    int64_t span = span_of(linear->in);
    Piece piece = {.linear = linear, .matrix = panel->numbers, .bias = panel->bias, .column = panel->column,
                   .width = panel->width, .next_lines = VECTORS};
    if (panel->packing)
        piece.next_lines = code_bits(panel->packing->codes) / 4;
    for (; piece.first < linear->in; piece.first = piece.stop) {
        piece.next = panel->packing ? following + piece.first / 2 * piece.next_lines * 64
                                    : (const char *)(piece.matrix + (piece.first + span) * COLUMNS);
        piece.stop = linear->in - piece.first < span ? linear->in : piece.first + span;
        /* The last panel often has at most half as many columns: then half the work is enough. */
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
    const int unpacks = is_packed(linear) && count > FEW_ROWS;
    bf16 *unpacked = unpacks ? workspace(padded(linear->in, INPUTS) * PANEL * sizeof(bf16)) : NULL;
    for (int64_t block = 0; block < count; block += BLOCK)
        for (int64_t number = panels.begin; number < panels.end; number++) {
            Panel panel = find_panel(BFLOAT16, linear, number);
            if (panel.packing && !unpacks) {
                multiply_packed_panel(linear, &panel, &all, count);
                continue;
            }
            const char *following = NULL;
            if (panel.packing) {
                following = (const char *)panel.numbers + packed_bytes(panel.packing, linear->in).all;
                unpack_by_vectors(panel.packing, panel.numbers, linear->in, unpacked);
                panel.numbers = unpacked;
            }
            for (int64_t row = block; row < count && row < block + BLOCK; row += MOST) {
                Rows rows = rows_after(&all, linear, row);
                rows.sums = sums;
                multiply_panel(linear, &panel, following, &rows, count - row < MOST ? count - row : MOST);
            }
        }
}

#include "../end_target.h"
#endif
