/* Multiplies rows by a matrix with product_amx.h. */
#pragma once

#include "workspace.h"

#define PIECE_LINES (INPUTS * PANEL * (int64_t)sizeof(bf16) / 64) /* cache lines of 32 inputs of a panel */
#define SPAN_BLOCKS 7     /* blocks of inputs of a panel that stay in the L1 cache */
#define FEW_SPAN_BLOCKS 5 /* the same where the sums of FEW_TILES tiles of rows stay there as well */
#define FEW_TILES 4
#define UNPACKED_BLOCKS 8     /* blocks of a packed panel that are unpacked while as many are used */
#define FEW_UNPACKED_BLOCKS 4 /* the same for at most FEW_TILES tiles of rows */

/* Rows padded to 32 inputs and, unless they are fewer than 16, to a multiple of 16; `stride` is in bytes. The last 16
   rows are a copy where padding with zeros is needed. */
typedef struct {
    const bf16 *rows, *last;
    int64_t stride, last_stride, count;
} Rows;

ALWAYS const bf16 *rows_of(const Rows *rows, int64_t first, int64_t *stride) {
    int is_copy = rows->last && first + TILE_ROWS > rows->count;
    *stride = is_copy ? rows->last_stride : rows->stride;
    return is_copy ? rows->last : rows->rows + first * rows->stride / (int64_t)sizeof(bf16);
}

/* The rows that one panel multiplies, and where the results go. */
typedef struct {
    const Rows *rows;
    const Linear *linear;
    const bf16 *residual;
    bf16 *out;
    float *sums;    /* `[row, 64]` */
    bf16 *unpacked; /* twice the most blocks that are unpacked at a time */
} Product;

ALWAYS void finish_tile(const Product *product, const Panel *panel, const float *sums, int64_t first) {
    int64_t out = product->linear->out, count = product->rows->count;
    int64_t end = first + TILE_ROWS < count ? first + TILE_ROWS : count;
    for (int64_t row = first; row < end; row++, sums += PANEL)
        finish(BFLOAT16, sums, panel, product->residual ? product->residual + row * out : NULL,
               product->out + row * out);
}

/* Multiplies all rows by one panel. One tile of rows takes the whole panel as it comes from memory, and prefetches a
   little of what follows. With more rows that would leave memory idle. So all rows take one piece of the panel at a
   time, while it is in the L1 cache, and prefetch the next piece. */
static void multiply_panel(const Product *product, const Panel *panel, int64_t blocks) {
    const Rows *rows = product->rows;
    int64_t tiles = padded(rows->count, TILE_ROWS) / TILE_ROWS;
    int64_t span = tiles > FEW_TILES ? SPAN_BLOCKS : FEW_SPAN_BLOCKS;
    int64_t pieces = tiles == 1 ? 1 : (blocks + span - 1) / span, most = (blocks + pieces - 1) / pieces;
    _Alignas(64) float last[TILE_ROWS * PANEL]; /* in the nearest cache */
    TileJob job = {.b_stride = 2 * PANEL * sizeof(bf16), .c_stride = PANEL * sizeof(float),
                   .lines = (PIECE_LINES + tiles - 1) / tiles};
    for (int64_t block = 0; block < blocks; block += most) {
        job.blocks = blocks - block < most ? blocks - block : most;
        job.b = (const bf16 *)panel->numbers + block * INPUTS * PANEL;
        job.ahead = (const char *)job.b + (tiles == 1 ? PIECE_LINES / 2 : PIECE_LINES * job.blocks) * 64;
        for (int64_t first = 0; first < rows->count; first += TILE_ROWS) {
            int is_last = block + job.blocks == blocks;
            job.a = rows_of(rows, first, &job.a_stride) + block * INPUTS;
            job.from = block ? product->sums + first * PANEL : NULL;
            job.to = is_last ? last : product->sums + first * PANEL;
            job.ahead = multiply_tiles(job, 4);
            if (is_last)
                finish_tile(product, panel, last, first);
        }
    }
}

/* Multiplies all rows by one packed panel. While they use one piece of it, which is in the L1 cache, the next one is
   unpacked. The sums of one tile of rows stay in registers, so that its pieces need be no longer than a block. */
static void multiply_packed_panel(const Product *product, const Panel *panel, int64_t blocks) {
    const Rows *rows = product->rows;
    int64_t tiles = padded(rows->count, TILE_ROWS) / TILE_ROWS;
    int64_t most = tiles == 1 ? 1 : tiles > FEW_TILES ? UNPACKED_BLOCKS : FEW_UNPACKED_BLOCKS;
    _Alignas(64) float last[TILE_ROWS * PANEL]; /* in the nearest cache */
    uint32_t before = _mm_getcsr();
    PackedPanel from;
    Meanwhile meanwhile = {.from = &from, .each = (INPUTS / 2 + tiles - 1) / tiles}; /* so that all are done in time */
    TileJob job = {.b_stride = 2 * PANEL * sizeof(bf16), .c_stride = PANEL * sizeof(float), .meanwhile = &meanwhile};
    begin_unpacking(panel->packing, panel->numbers, product->linear->in, &from);
    _mm_setcsr(UNFLUSHED);
    unpack_by_vectors(&from, (most < blocks ? most : blocks) * INPUTS / 2, product->unpacked);
    for (int64_t block = 0, piece = 0; block < blocks; block += job.blocks, piece = !piece) {
        int64_t left = blocks - block, is_last = left <= most;
        job.blocks = is_last ? left : most;
        job.b = product->unpacked + piece * most * INPUTS * PANEL;
        left -= job.blocks;
        meanwhile.to = product->unpacked + !piece * most * INPUTS * PANEL;
        meanwhile.left = (left < most ? left : most) * INPUTS / 2;
        if (is_last)
            _mm_setcsr(before);
        for (int64_t first = 0; first < rows->count; first += TILE_ROWS) {
            float *sums = tiles == 1 ? NULL : product->sums + first * PANEL;
            job.a = rows_of(rows, first, &job.a_stride) + block * INPUTS;
            job.goes_on = block && !sums;
            job.from = block ? sums : NULL;
            job.to = is_last ? last : sums;
            multiply_tiles(job, 4);
            if (is_last)
                finish_tile(product, panel, last, first);
        }
    }
}

/* Copies rows where tiles would read beyond them: all rows if their inputs are not a multiple of 32, else the last ones
   unless they are all. */
static Rows whole_rows(const bf16 *rows, int64_t count, int64_t in, bf16 *memory) {
    int64_t inputs = padded(in, INPUTS), first = inputs == in ? count / TILE_ROWS * TILE_ROWS : 0;
    Rows made = {rows, NULL, in * sizeof(bf16), inputs * sizeof(bf16), count};
    if (first < count && (first || inputs != in)) {
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
    int64_t unpacked = is_packed(linear) ? 2 * UNPACKED_BLOCKS * INPUTS * PANEL : 0;
    float *sums = workspace(all * PANEL * sizeof(float) + (unpacked + all * inputs) * sizeof(bf16));
    bf16 *pieces = (bf16 *)(sums + all * PANEL);
    Rows whole = whole_rows(rows, count, linear->in, pieces + unpacked);
    Product product = {&whole, linear, residual, out, sums, pieces};
    configure_tiles(count);
    for (int64_t number = panels.begin; number < panels.end; number++) {
        Panel panel = find_panel(BFLOAT16, linear, number);
        if (panel.packing)
            multiply_packed_panel(&product, &panel, inputs / INPUTS);
        else
            multiply_panel(&product, &panel, inputs / INPUTS);
    }
    release_tiles();
}
