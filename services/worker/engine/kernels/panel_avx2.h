/* Multiplies rows by a panel on CPUs with AVX2, whose caches next to a core are small. Of panel and rows, 32 inputs are
   used at a time. They lie together in memory, rows as `[block of 32 inputs, row, 32]`. Figures are of AMD Zen 3. Include
   this in matrix_fma.h. */
#pragma once

#define ROWS_AT_ONCE 192
#define SPAN_BLOCKS 1
#define FEW_HALVES 3 /* with so few rows, widening a block first would take longer */
#define FEW_FLOATS 8 /* with so few rows, copying a block first would take longer */
#define LINE 64      /* bytes of the cache */
#define NEVER __attribute__((noinline)) /* Inlined, these functions would be a few per cent slower. */

/* Packs row number `row` of `count` rows. */
ALWAYS void pack(Type type, const void *from, int64_t in, int64_t row, int64_t count, const Tools *tools) {
    for (int64_t first = 0; first < in; first += INPUTS)
        pack_row(type, address(type, from, first), in - first < INPUTS ? in - first : INPUTS,
                 tools->rows + first * count + row * INPUTS);
}

ALWAYS int64_t block_bytes(Type type) { return INPUTS * PANEL * (type == BFLOAT16 ? sizeof(bf16) : sizeof(float)); }

ALWAYS void prefetch(const char *from, int64_t bytes) {
    for (const char *line = from; line < from + bytes; line += LINE)
        __builtin_prefetch(line, 0, 2);
}

/* Adds the products of some rows and a block to all 64 sums of each row. */
ALWAYS void add_group(const float *a, const float *block, float *sums, int rows) {
    for (int64_t column = 0; column < PANEL; column += COLUMNS(rows) * LANES)
        add_products(a, INPUTS, block + column, PANEL, sums + column, PANEL, 1, rows, COLUMNS(rows));
}

/* Adds the products of `count` rows and a block. Meanwhile `bytes` from `next` on are prefetched. */
static NEVER void add_block(const float *a, const float *block, float *sums, int64_t count, const char *next,
                            int64_t bytes) {
    int64_t groups = (count + GROUP - 1) / GROUP, each = padded((bytes + groups - 1) / groups, LINE);
    for (int64_t rows; count > 0; count -= rows, a += rows * INPUTS, sums += rows * PANEL, next += each) {
        prefetch(next, each);
        /* The last rows are divided evenly: very few at once take almost as long as more. */
        rows = count <= GROUP ? count : count < GROUP + 4 ? (count + 1) / 2 : GROUP;
        switch (rows) {
        case 1: add_group(a, block, sums, 1); break;
        case 2: add_group(a, block, sums, 2); break;
        case 3: add_group(a, block, sums, 3); break;
        case 4: add_group(a, block, sums, 4); break;
        case 5: add_group(a, block, sums, 5); break;
        default: add_group(a, block, sums, GROUP); break;
        }
    }
}

static NEVER void widen_block(const bf16 *block, float *to) { widen_panel(block, 1, to); }

/* Adds the products of up to three rows and a block of bfloat16, which is read as it is in memory. */
ALWAYS void add_halves(const float *a, const bf16 *block, float *sums, int rows, int columns) {
    for (int64_t column = 0; column < PANEL; column += columns * LANES) {
        const bf16 *pairs = block + 2 * column;
        Floats even[MOST_SUMS / 2], odd[MOST_SUMS / 2];
#pragma GCC unroll 6
        for (int i = 0; i < rows * columns; i++)
            even[i] = odd[i] = everywhere(0.0f);
#pragma GCC unroll 2
        for (int input = 0; input < INPUTS / 2; input++, pairs += 2 * PANEL)
#pragma GCC unroll 4
            for (int c = 0; c < columns; c++) {
                Floats first = widen_even(pairs + 2 * c * LANES), second = widen_odd(pairs + 2 * c * LANES);
#pragma GCC unroll 3
                for (int row = 0, i = c; row < rows; row++, i += columns) {
                    even[i] = multiply_add(everywhere(a[row * INPUTS + input]), first, even[i]);
                    odd[i] = multiply_add(everywhere(a[row * INPUTS + INPUTS / 2 + input]), second, odd[i]);
                }
            }
#pragma GCC unroll 3
        for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
            for (int c = 0; c < columns; c++) {
                float *to = sums + row * PANEL + column + c * LANES;
                store(to, load(to) + (even[row * columns + c] + odd[row * columns + c]));
            }
    }
}

/* Adds the products of a few rows and a block as it is in memory. */
ALWAYS void add_few(Type type, const float *a, const void *block, float *sums, int64_t count) {
    if (type == FLOAT32)
        for (int64_t row = 0; row < count; row++)
            add_group(a + row * INPUTS, block, sums + row * PANEL, 1);
    else if (count == 1)
        add_halves(a, block, sums, 1, 4);
    else if (count == 2)
        add_halves(a, block, sums, 2, 2);
    else
        add_halves(a, block, sums, 3, 2);
}

/* Multiplies the rows in `tools` by one panel. */
ALWAYS void multiply_panel(Type type, const Tools *tools, const void *panel, int64_t count, int64_t blocks) {
    const float *a = tools->rows;
    const char *from = panel;
    int64_t bytes = block_bytes(type);
    memset(tools->sums, 0, count * PANEL * sizeof(float));
    for (int64_t block = 0; block < blocks; block++, a += count * INPUTS, from += bytes) {
        if (count <= (type == BFLOAT16 ? FEW_HALVES : FEW_FLOATS)) {
            prefetch(from + bytes, bytes);
            add_few(type, a, from, tools->sums, count);
            continue;
        }
        if (type == BFLOAT16)
            widen_block((const bf16 *)from, tools->piece);
        else
            memcpy(tools->piece, from, bytes);
        add_block(a, tools->piece, tools->sums, count, from + bytes, bytes);
    }
}
