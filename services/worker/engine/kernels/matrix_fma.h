/* Multiplies rows by a matrix with product_fma.h. */
#pragma once

#define NEVER __attribute__((noinline)) /* Inlined, these functions would be a few per cent slower. */

#include "unpack.h"
#include "workspace.h"

/* The working memory: the rows, a block of a panel, and sums. */
typedef struct {
    Packed *rows, *piece;
    float *sums;
} Tools;

#include "panel_fma.h"

ALWAYS void multiply_as(Type type, const Linear *linear, const void *rows, const void *residual, void *out,
                        int64_t count, Share panels) {
    int64_t blocks = padded(linear->in, INPUTS) / INPUTS;
    int64_t most = count < ROWS_AT_ONCE ? count : ROWS_AT_ONCE;
    int64_t row_numbers = most * blocks * INPUTS, piece_numbers = INPUTS * PANEL;
    Packed *memory = workspace((row_numbers + piece_numbers + most * PANEL) * sizeof(float));
    Tools tools = {memory, memory + row_numbers, memory + row_numbers + piece_numbers};
    for (int64_t first = 0; first < count; first += most) {
        int64_t here = count - first < most ? count - first : most;
        for (int64_t row = 0; row < here; row++)
            pack(type, address(type, rows, (first + row) * linear->in), linear->in, row, here, &tools);
        for (int64_t number = panels.begin; number < panels.end; number++) {
            Panel panel = find_panel(type, linear, number);
            if (panel.packing)
                multiply_packed(&tools, &panel, linear->in, here);
            else
                multiply_panel(type, &tools, panel.numbers, here, blocks);
            for (int64_t row = 0; row < here; row++) {
                int64_t place = (first + row) * linear->out;
                finish(type, tools.sums + row * PANEL, &panel, residual ? address(type, residual, place) : NULL,
                       (void *)address(type, out, place));
            }
        }
    }
}
