/* Multiplies rows by a matrix with product_fma.h. */
#pragma once

#include "unpack.h"
#include "workspace.h"

/* The working memory: the rows, a piece of a panel, sums, and a panel that was packed. */
typedef struct {
    Packed *rows, *piece;
    float *sums;
    bf16 *unpacked;
} Tools;

#if LANES == 8
#include "panel_avx2.h"
#else
#define ROWS_AT_ONCE 120 /* a multiple of GROUP */
#define FEW_ROWS 32      /* with so few rows, widening a panel first would take longer */
#define SPAN_BLOCKS 4    /* blocks of inputs that stay in the cache as float32 while rows use them */

#define DIRECT_COLUMNS 4 /* vectors whose sums of even and odd inputs are kept in registers */

/* `product` of few rows and a whole panel of bfloat16, which is read as it is in memory. */
static void product_of_few(const float *a, int64_t a_stride, const bf16 *panel, float *c, int64_t rows,
                           int64_t blocks) {
    memset(c, 0, rows * PANEL * sizeof(float));
    for (int64_t block = 0; block < blocks; block++, a += INPUTS, panel += INPUTS * PANEL)
        for (int64_t row = 0; row < rows; row++)
            for (int64_t column = 0; column < PANEL; column += DIRECT_COLUMNS * LANES) {
                const float *inputs = a + row * a_stride;
                const bf16 *pairs = panel + 2 * column;
                float *to = c + row * PANEL + column;
                Floats even[DIRECT_COLUMNS], odd[DIRECT_COLUMNS];
#pragma GCC unroll 4
                for (int i = 0; i < DIRECT_COLUMNS; i++)
                    even[i] = odd[i] = everywhere(0.0f);
#pragma GCC unroll 2
                for (int input = 0; input < INPUTS / 2; input++, pairs += 2 * PANEL) {
                    Floats first = everywhere(inputs[input]), second = everywhere(inputs[INPUTS / 2 + input]);
#pragma GCC unroll 4
                    for (int i = 0; i < DIRECT_COLUMNS; i++) {
                        even[i] = multiply_add(first, widen_even(pairs + 2 * i * LANES), even[i]);
                        odd[i] = multiply_add(second, widen_odd(pairs + 2 * i * LANES), odd[i]);
                    }
                }
#pragma GCC unroll 4
                for (int i = 0; i < DIRECT_COLUMNS; i++)
                    store(to + i * LANES, load(to + i * LANES) + (even[i] + odd[i]));
            }
}

/* Packs row number `row` of `count` rows. */
ALWAYS void pack(Type type, const void *from, int64_t in, int64_t row, int64_t count, const Tools *tools) {
    (void)count;
    pack_row(type, from, in, tools->rows + row * padded(in, INPUTS));
}

/* Multiplies the rows in `tools` by one panel. */
ALWAYS void multiply_panel(Type type, const Tools *tools, const void *panel, int64_t count, int64_t blocks) {
    if (type == BFLOAT16 && count <= FEW_ROWS) {
        product_of_few(tools->rows, blocks * INPUTS, panel, tools->sums, count, blocks);
        return;
    }
    for (int64_t block = 0; block < blocks; block += SPAN_BLOCKS) {
        int64_t span = blocks - block < SPAN_BLOCKS ? blocks - block : SPAN_BLOCKS;
        const float *piece = address(type, panel, block * INPUTS * PANEL);
        if (type == BFLOAT16) {
            widen_panel((const bf16 *)piece, span, tools->piece);
            piece = tools->piece;
        }
        product(tools->rows + block * INPUTS, blocks * INPUTS, piece, PANEL, tools->sums, PANEL, count, PANEL, span,
                block == 0);
    }
}
#endif

ALWAYS void multiply_as(Type type, const Linear *linear, const void *rows, const void *residual, void *out,
                        int64_t count, Share panels) {
    int64_t blocks = padded(linear->in, INPUTS) / INPUTS;
    int64_t most = count < ROWS_AT_ONCE ? count : ROWS_AT_ONCE;
    int64_t row_numbers = most * blocks * INPUTS, piece_numbers = SPAN_BLOCKS * INPUTS * PANEL;
    int64_t numbers = row_numbers + piece_numbers + most * PANEL;
    int64_t unpacked = is_packed(linear) ? blocks * INPUTS * PANEL : 0;
    Packed *memory = workspace(numbers * sizeof(float) + unpacked * sizeof(bf16));
    Tools tools = {memory, memory + row_numbers, memory + row_numbers + piece_numbers, (bf16 *)(memory + numbers)};
    for (int64_t first = 0; first < count; first += most) {
        int64_t here = count - first < most ? count - first : most;
        for (int64_t row = 0; row < here; row++)
            pack(type, address(type, rows, (first + row) * linear->in), linear->in, row, here, &tools);
        for (int64_t number = panels.begin; number < panels.end; number++) {
            Panel panel = find_panel(type, linear, number);
            multiply_panel(type, &tools, unpacked_panel(&panel, linear->in, tools.unpacked), here, blocks);
            for (int64_t row = 0; row < here; row++) {
                int64_t place = (first + row) * linear->out;
                finish(type, tools.sums + row * PANEL, &panel, residual ? address(type, residual, place) : NULL,
                       (void *)address(type, out, place));
            }
        }
    }
}
