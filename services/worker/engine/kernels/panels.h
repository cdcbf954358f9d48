/* Copies matrices into panels, and finishes products with them. Include this after wide.h. */
#pragma once

/* 16 of a row's sums for a panel, from `i` on, with bias and residual. `count` of them exist. */
ALWAYS Wide finished(Type type, const float *sums, const Panel *panel, const void *residual, int64_t i,
                     int64_t count) {
    Wide made = wide_load(FLOAT32, sums + i);
    if (panel->bias)
        made = wide_add(made, wide_load_some(type, address(type, panel->bias, i), count));
    if (residual)
        made = wide_add(made, wide_load_some(type, address(type, residual, panel->column + i), count));
    return made;
}

/* Finishes one row's sums for a panel: adds bias and residual, and stores the result. Most panels have their full
   width. */
ALWAYS void finish(Type type, const float *sums, const Panel *panel, const void *residual, void *out) {
    void *to = (void *)address(type, out, panel->column);
    if (panel->width == PANEL)
#pragma GCC unroll 2
        for (int64_t i = 0; i < PANEL; i += 2 * WIDE)
            wide_store_pair(type, (void *)address(type, to, i), finished(type, sums, panel, residual, i, WIDE),
                            finished(type, sums, panel, residual, i + WIDE, WIDE));
    else
        for (int64_t i = 0; i < panel->width; i += WIDE)
            wide_store_some(type, (void *)address(type, to, i),
                            finished(type, sums, panel, residual, i, panel->width - i), panel->width - i);
}

/* 32 inputs of 16 rows of a matrix, padded with zeros at the edges of the matrix. */
typedef struct {
    _Alignas(64) float numbers[WIDE * INPUTS];
} Corner;

/* Returns 32 inputs from `first` on of the 16 rows from `rows` on, of which `count` exist. Where the matrix ends, they
   are copied into `corner`, and `stride` becomes the distance of rows there. */
ALWAYS const void *whole_corner(Type type, const void *rows, int64_t count, int64_t first, int64_t in, int64_t *stride,
                                Corner *corner) {
    int64_t inputs = in - first < INPUTS ? in - first : INPUTS;
    if (count >= WIDE && inputs == INPUTS)
        return address(type, rows, first);
    memset(corner, 0, sizeof *corner);
    for (int64_t row = 0; row < count && row < WIDE; row++)
        memcpy((void *)address(type, corner->numbers, row * INPUTS), address(type, rows, row * *stride + first),
               inputs * (type == BFLOAT16 ? sizeof(bf16) : sizeof(float)));
    *stride = INPUTS;
    return corner->numbers;
}

/* Stores up to 64 rows `[row, in]` as columns of a bfloat16 panel: `[pair of inputs, column, input of the pair]`. */
ALWAYS void pair_inputs(const void *rows, int64_t count, int64_t stride, int64_t in, int32_t *panel, int64_t column) {
    Corner corner;
    for (int64_t first = 0; first < in; first += INPUTS) {
        int64_t step = stride;
        const bf16 *numbers = whole_corner(BFLOAT16, rows, count, first, in, &step, &corner);
        if (step % 2 == 0) {
            transpose((const int32_t *)numbers, step / 2, panel + first / 2 * PANEL + column, PANEL);
            continue;
        }
        for (int64_t row = 0; row < WIDE; row++) /* With an odd stride, rows are not aligned to pairs and must be
                                                    copied. */
            memcpy((bf16 *)corner.numbers + row * INPUTS, numbers + row * step, INPUTS * sizeof(bf16));
        transpose((const int32_t *)corner.numbers, INPUTS / 2, panel + first / 2 * PANEL + column, PANEL);
    }
}

/* The same in float32, where the even ones of 32 inputs come first. */
ALWAYS void halve_inputs(const void *rows, int64_t count, int64_t stride, int64_t in, float *panel, int64_t column) {
    Corner corner;
    for (int64_t first = 0; first < in; first += INPUTS) {
        int64_t step = stride;
        int32_t columns[INPUTS][WIDE];
        const int32_t *numbers = whole_corner(FLOAT32, rows, count, first, in, &step, &corner);
        transpose(numbers, step, columns[0], WIDE);
        transpose(numbers + WIDE, step, columns[WIDE], WIDE);
        for (int64_t i = 0; i < INPUTS; i++)
            memcpy(panel + (first + i % 2 * WIDE + i / 2) * PANEL + column, columns[i], sizeof columns[i]);
    }
}

/* Copies a matrix `[out, in]` into panels, which the caller has zeroed. */
ALWAYS void lay_out_as(Type type, const void *matrix, int64_t out, int64_t in, void *panels) {
    for (int64_t row = 0; row < out; row += WIDE) {
        void *panel = (void *)address(type, panels, row / PANEL * PANEL * padded(in, INPUTS));
        const void *rows = address(type, matrix, row * in);
        if (type == BFLOAT16)
            pair_inputs(rows, out - row, in, in, panel, row % PANEL);
        else
            halve_inputs(rows, out - row, in, in, panel, row % PANEL);
    }
}
