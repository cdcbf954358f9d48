/* Multiplies rows by a matrix with product_fma.h. */
#pragma once

#include "unpack.h"
#include "workspace.h"

/* The working memory: the rows, a block of a panel, sums, and a panel that was packed. */
typedef struct {
    Packed *rows, *piece;
    float *sums;
    bf16 *unpacked;
} Tools;

#include "panel_fma.h"

ALWAYS void multiply_as(Type type, const Linear *linear, const void *rows, const void *residual, void *out,
                        int64_t count, Share panels) {
    int64_t blocks = padded(linear->in, INPUTS) / INPUTS;
    int64_t most = count < ROWS_AT_ONCE ? count : ROWS_AT_ONCE;
    int64_t row_numbers = most * blocks * INPUTS, piece_numbers = INPUTS * PANEL;
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
            const void *block = unpacked_panel(&panel, linear->in, tools.unpacked);
            multiply_panel(type, &tools, block, panel.packing != NULL, here, blocks);
            for (int64_t row = 0; row < here; row++) {
                int64_t place = (first + row) * linear->out;
                finish(type, tools.sums + row * PANEL, &panel, residual ? address(type, residual, place) : NULL,
                       (void *)address(type, out, place));
            }
        }
    }
}
