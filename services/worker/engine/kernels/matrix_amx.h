/* Rows times a matrix, by product_amx.h. */
#pragma once

#include "workspace.h"

#define PIECE_LINES (INPUTS * PANEL * (int64_t)sizeof(bf16) / 64) /* of a panel, for 32 inputs */
#define FEW_TILES 2
#define SPAN_BLOCKS 6 /* blocks of inputs that stay in the nearest cache, of one panel, while rows go by */

/* Rows that are a multiple of 16 and 32 inputs; `stride` is in bytes. The last 16 are copied where that takes zeros. */
typedef struct {
    const bf16 *rows, *last;
    int64_t stride, last_stride, count;
} Rows;

ALWAYS const bf16 *rows_of(const Rows *rows, int64_t first, int64_t *stride) {
    int is_copy = rows->last && first + TILE_ROWS > rows->count;
    *stride = is_copy ? rows->last_stride : rows->stride;
    return is_copy ? rows->last : rows->rows + first * rows->stride / (int64_t)sizeof(bf16);
}

/* All rows times one panel; sums are `[row, 64]`. Few rows go by one after the other while the panel comes from memory,
   and ask for a little of what comes next. With more rows memory would pause: so all of them go by one piece of the panel
   at a time, while it is in the nearest cache, and ask for the next piece. */
static void multiply_panel(const Rows *rows, const bf16 *panel, int64_t blocks, float *sums) {
    int64_t tiles = padded(rows->count, TILE_ROWS) / TILE_ROWS, stride;
    int is_few = tiles <= FEW_TILES;
    int64_t most = is_few ? blocks : SPAN_BLOCKS, lines = (PIECE_LINES + tiles - 1) / tiles;
    for (int64_t block = 0; block < blocks; block += most) {
        int64_t span = blocks - block < most ? blocks - block : most;
        const bf16 *piece = panel + block * INPUTS * PANEL;
        const char *ahead = (const char *)piece + (is_few ? PIECE_LINES / 2 : PIECE_LINES * span) * 64;
        for (int64_t first = 0; first < rows->count; first += TILE_ROWS) {
            const bf16 *from = rows_of(rows, first, &stride) + block * INPUTS;
            add_tiles(from, stride, piece, 2 * PANEL * sizeof(bf16), sums + first * PANEL, PANEL * sizeof(float), span, 4,
                      block == 0, &ahead, !is_few ? lines : first ? 0 : PIECE_LINES);
        }
    }
}

/* Copies rows where tiles would read beyond them: all of them if their inputs are no multiple of 32, else the last. */
static Rows whole_rows(const bf16 *rows, int64_t count, int64_t in, bf16 *memory) {
    int64_t inputs = padded(in, INPUTS), first = inputs == in ? count / TILE_ROWS * TILE_ROWS : 0;
    Rows made = {rows, NULL, in * sizeof(bf16), inputs * sizeof(bf16), count};
    if (first < count) {
        memset(memory, 0, padded(count - first, TILE_ROWS) * inputs * sizeof(bf16));
        for (int64_t row = first; row < count; row++)
            memcpy(memory + (row - first) * inputs, rows + row * in, in * sizeof(bf16));
        if (first)
            made.last = memory;
        else
            made.rows = memory, made.stride = made.last_stride;
    }
    return made;
}

static void multiply_by_tiles(const Linear *linear, const void *rows, const void *residual, void *out, int64_t count,
                              Share panels) {
    int64_t inputs = padded(linear->in, INPUTS), all = padded(count, TILE_ROWS);
    float *sums = workspace(all * PANEL * sizeof(float) + all * inputs * sizeof(bf16));
    Rows whole = whole_rows(rows, count, linear->in, (bf16 *)(sums + all * PANEL));
    configure_tiles();
    for (int64_t number = panels.begin; number < panels.end; number++) {
        Panel panel = find_panel(BFLOAT16, linear, number);
        multiply_panel(&whole, panel.numbers, inputs / INPUTS, sums);
        for (int64_t row = 0; row < count; row++)
            finish(BFLOAT16, sums + row * PANEL, &panel,
                   residual ? (const bf16 *)residual + row * linear->out : NULL, (bf16 *)out + row * linear->out);
    }
    release_tiles();
}
