/* What adapters add to the products of a layer's linear maps: rows are gathered by adapter, so that each adapter's
   matrices are read once. A row's result depends on no other row, since none does of a product. */
#include <string.h>

#include "kernels.h"
#include "workspace.h"

/* Numbers of rows, relative to the first row that is here. */
typedef struct {
    const int64_t *numbers;
    int64_t first, count;
} Picked;

/* Of rising numbers, those from `first` to `stop` - 1. */
static Picked pick(const AdapterRows *adapter, int64_t first, int64_t stop) {
    int64_t begin = 0, end = adapter->count;
    while (begin < end && adapter->rows[begin] < first)
        begin++;
    while (end > begin && adapter->rows[end - 1] >= stop)
        end--;
    return (Picked){adapter->rows + begin, first, end - begin};
}

static int is_contiguous(const Picked *rows) {
    return rows->numbers[rows->count - 1] - rows->numbers[0] == rows->count - 1;
}

static void gather(const Picked *rows, const char *from, int64_t row_bytes, char *to) {
    for (int64_t i = 0; i < rows->count; i++)
        memcpy(to + i * row_bytes, from + (rows->numbers[i] - rows->first) * row_bytes, row_bytes);
}

static void scatter(const Picked *rows, const char *from, int64_t row_bytes, char *to) {
    for (int64_t i = 0; i < rows->count; i++)
        memcpy(to + (rows->numbers[i] - rows->first) * row_bytes, from + i * row_bytes, row_bytes);
}

static void add_rows(const Kernels *kernels, Type type, const LowRank *map, const Picked *rows, const char *in,
                     char *product) {
    int64_t size = type == BFLOAT16 ? sizeof(bf16) : sizeof(float), in_bytes = map->down.in * size;
    int64_t out_bytes = map->up.out * size, low_bytes = map->up.in * size, row_bytes = in_bytes + out_bytes + low_bytes;
    char *low = workspace_for(LOW_RANKS, rows->count * row_bytes), *made = low + rows->count * low_bytes;
    if (is_contiguous(rows)) {
        int64_t at = rows->numbers[0] - rows->first;
        kernels_multiply(kernels, type, &map->down, in + at * in_bytes, NULL, low, rows->count);
        kernels_multiply(kernels, type, &map->up, low, product + at * out_bytes, product + at * out_bytes, rows->count);
        return;
    }
    char *gathered = made + rows->count * out_bytes;
    gather(rows, in, in_bytes, gathered);
    gather(rows, product, out_bytes, made);
    kernels_multiply(kernels, type, &map->down, gathered, NULL, low, rows->count);
    kernels_multiply(kernels, type, &map->up, low, made, made, rows->count);
    scatter(rows, made, out_bytes, product);
}

void kernels_add_low_rank(const Kernels *kernels, Type type, const Adapters *adapters, int64_t layer, Map map,
                          const void *in, void *product, int64_t first, int64_t rows) {
    for (int64_t i = 0; i < adapters->count; i++) {
        const LowRank *added = &adapters->each[i].layers[layer][map];
        Picked picked = pick(&adapters->each[i], first, first + rows);
        if (added->down.in && picked.count)
            add_rows(kernels, type, added, &picked, in, product);
    }
}
