/* Multiplies rows by a matrix. Few rows run at the speed of memory, many at the speed of the CPU. Inputs are processed
   in spans. Within a span, pairs of inputs are added in order; then spans are added in order. */
#ifdef __x86_64__
#include "../panel.h"
#include "operations.h"
#include "vectors.h"

#include "piece.h"

#include "../workspace.h"

/* For so few rows AMD's CPUs prefetch best by themselves; Intel's read a third less than they could. */
#define FEWEST 2

/* Up to so many rows are in wide groups: while they wait for memory or, of an unpacked panel, where they need no second
   group. */
#define MOST_WIDE 18
#define MOST_WIDE_UNPACKED 9

/* So many numbers of a panel before their use, few rows prefetch them. */
#define NEAR 4096
#define WIDE_NEAR 8192

void add_span(const Piece *piece, const Rows *rows, const float *made, int64_t count) {
    int is_last = piece->stop == piece->linear->in;
    for (int64_t row = 0; row < count; row++, made += COLUMNS) {
        float *sums = rows->sums + row * COLUMNS;
        for (int64_t v = 0; v * FLOATS < piece->width; v += 2) {
            __m512 low = _mm512_load_ps(made + v * FLOATS), high = _mm512_load_ps(made + (v + 1) * FLOATS);
            if (piece->first) {
                low = _mm512_add_ps(_mm512_loadu_ps(sums + v * FLOATS), low);
                high = _mm512_add_ps(_mm512_loadu_ps(sums + (v + 1) * FLOATS), high);
            }
            if (is_last) {
                finish(piece, rows, row, v * FLOATS, low, high);
                continue;
            }
            _mm512_storeu_ps(sums + v * FLOATS, low);
            _mm512_storeu_ps(sums + (v + 1) * FLOATS, high);
        }
    }
}

/* Computes rows in groups of equal size. Memory would be idle while many rows compute, so each group prefetches its share
   of what follows. The last panel often has at most half as many columns: then half the work is enough. */
static void multiply_piece(Means means, const Piece *piece, Rows rows, int64_t count) {
    _Alignas(64) float made[WIDE * COLUMNS];
    int is_first = !piece->first && piece->stop < piece->linear->in; /* of several spans */
    SumSpan *const *sum = piece->is_wide ? wide_span_sums : span_sums[means][piece->width > COLUMNS / 2];
    int64_t most = piece->is_wide ? WIDE : GROUP, groups = (count + most - 1) / most;
    int64_t left = count <= FEWEST && means == DOTS ? 0 : piece->next_lines, share = (left + groups - 1) / groups;
    const char *ahead = piece->next;
    for (int64_t size; groups > 0; groups--, count -= size, rows = rows_after(&rows, piece->linear, size)) {
        int64_t lines = share < left ? share : left;
        size = (count + groups - 1) / groups;
        uint32_t before = begin_sums(means);
        sum[size - 1](piece, &rows, ahead, lines, is_first ? rows.sums : made);
        _mm_setcsr(before);
        if (!is_first)
            add_span(piece, &rows, made, size);
        ahead += lines * 64 * ((piece->stop - piece->first) / 2);
        left -= lines;
    }
}

ALWAYS_INLINE int is_wide(Means means, const Panel *panel, int64_t count) {
    int64_t fewest = panel->packing ? GROUP : FEWEST, most = panel->packing ? MOST_WIDE_UNPACKED : MOST_WIDE;
    return means == DOTS && count > fewest && count <= most;
}

/* Multiplies at most MOST rows by one panel. `following` is what comes in memory after a packed one. */
static void multiply_panel(Means means, const Linear *linear, const Panel *panel, const char *following,
                           const Rows *rows, int64_t count) {
    Piece piece = {.linear = linear, .matrix = panel->numbers, .bias = panel->bias, .column = panel->column,
                   .width = panel->width, .next_lines = VECTORS, .is_wide = is_wide(means, panel, count)};
    int64_t span = span_of(linear->in), distance = span * COLUMNS;
    if (count <= (piece.is_wide ? WIDE : GROUP - 1))
        distance = piece.is_wide ? WIDE_NEAR : NEAR;
    if (panel->packing)
        piece.next_lines = code_bits(panel->packing->codes) / 4;
    for (; piece.first < linear->in; piece.first = piece.stop) {
        piece.next = panel->packing ? following + piece.first / 2 * piece.next_lines * 64
                                    : (const char *)(piece.matrix + piece.first * COLUMNS + distance);
        piece.stop = linear->in - piece.first < span ? linear->in : piece.first + span;
        multiply_piece(means, &piece, *rows, count);
    }
}

/* Widens rows to float32, an even number of inputs each. */
static void widen_rows(const bf16 *rows, int64_t count, int64_t in, float *to) {
    for (int64_t row = 0; row < count; row++, rows += in, to += padded(in, 2))
        for (int64_t i = 0; i < padded(in, 2); i += FLOATS)
            _mm512_mask_storeu_ps(to + i, first_floats(padded(in, 2) - i), load_floats(first_floats(in - i), rows + i));
}

/* Unpacks a whole panel. This variant flushes no denormal numbers. */
static void unpack_panel(const Panel *panel, int64_t in, bf16 *to) {
    PackedPanel from;
    begin_unpacking(panel->packing, panel->numbers, in, &from);
    unpack_by_vectors(&from, padded(in, INPUTS) / 2, to);
}

/* Multiplies at most BLOCK rows by some panels. */
static void multiply_block(Means means, const Linear *linear, const Rows *block, int64_t count, Share panels,
                           bf16 *unpacked) {
    for (int64_t number = panels.begin; number < panels.end; number++) {
        Panel panel = find_panel(BFLOAT16, linear, number);
        const char *following = NULL;
        if (panel.packing && count <= FEW_ROWS) {
            multiply_packed_panel(means, linear, &panel, block, count);
            continue;
        }
        if (panel.packing) {
            following = (const char *)panel.numbers + packed_bytes(panel.packing, linear->in).all;
            unpack_panel(&panel, linear->in, unpacked);
            panel.numbers = unpacked;
        }
        for (int64_t row = 0; row < count; row += MOST) {
            Rows rows = rows_after(block, linear, row);
            rows.sums = block->sums;
            multiply_panel(means, linear, &panel, following, &rows, count - row < MOST ? count - row : MOST);
        }
    }
}

ALWAYS_INLINE void multiply_by(Means means, const Linear *linear, const void *in, const void *residual, void *out,
                               int64_t count, Share panels) {
    _Alignas(64) float sums[MOST * COLUMNS];
    int64_t most = count < BLOCK ? count : BLOCK, floats = means == FMA ? most * padded(linear->in, 2) : 0;
    int64_t halves = is_packed(linear) ? padded(linear->in, INPUTS) * PANEL : 0;
    bf16 *unpacked = workspace(halves * sizeof(bf16) + floats * sizeof(float));
    float *widened = (float *)(unpacked + halves);
    const Rows all = {in, residual, out, sums, NULL};
    for (int64_t first = 0; first < count; first += most) {
        int64_t here = count - first < most ? count - first : most;
        Rows block = rows_after(&all, linear, first);
        block.sums = sums;
        if (means == FMA) {
            widen_rows(block.in, here, linear->in, widened);
            block.floats = widened;
        }
        multiply_block(means, linear, &block, here, panels, unpacked);
    }
}

void multiply_by_dot_products(const Linear *linear, const void *in, const void *residual, void *out, int64_t count,
                              Share panels) {
    multiply_by(DOTS, linear, in, residual, out, count, panels);
}

void multiply_by_fma(const Linear *linear, const void *in, const void *residual, void *out, int64_t count,
                     Share panels) {
    multiply_by(FMA, linear, in, residual, out, count, panels);
}

#include "../end_target.h"
#endif
