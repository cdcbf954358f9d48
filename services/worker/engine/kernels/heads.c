/* Each head's numbers are gathered, multiplied, and put where they belong. */
#include "heads.h"

#include <string.h>

#include "threads.h"
#include "workspace.h"

#define ROWS 256 /* that are gathered at a time */

typedef struct {
    const Operations *operations;
    int64_t size;
    const Linear *maps;
    const char *rows;
    char *out;
    int64_t row_stride, head_stride, out_stride, count;
} HeadsJob;

/* Multiplies rows `first` and on of one head. */
static void multiply_head(const HeadsJob *job, int64_t head, int64_t first, char *memory) {
    const Linear *map = &job->maps[head];
    int64_t rows = job->count - first < ROWS ? job->count - first : ROWS, size = job->size;
    int64_t in_bytes = map->in * size, out_bytes = map->out * size;
    char *made = memory + (ROWS * in_bytes + 63) / 64 * 64;
    for (int64_t i = 0; i < rows; i++) {
        int64_t place = (first + i) * job->row_stride + head * job->head_stride;
        memcpy(memory + i * in_bytes, job->rows + place * size, in_bytes);
    }
    Share panels = {0, 0};
    for (int64_t part = 0; part < map->parts; part++)
        panels.end += (map->part[part].out + PANEL - 1) / PANEL;
    job->operations->multiply(map, memory, NULL, made, rows, panels);
    for (int64_t i = 0; i < rows; i++)
        memcpy(job->out + ((first + i) * job->out_stride + head * map->out) * size, made + i * out_bytes, out_bytes);
}

static void heads_share(void *context, Share heads) {
    const HeadsJob *job = context;
    if (heads.begin == heads.end)
        return;
    int64_t row_bytes = (job->maps->in + job->maps->out) * job->size;
    char *memory = workspace_for(HEADS_OF_ROWS, ROWS * row_bytes + 64);
    for (int64_t head = heads.begin; head < heads.end; head++)
        for (int64_t first = 0; first < job->count; first += ROWS)
            multiply_head(job, head, first, memory);
}

void kernels_multiply_heads(const Kernels *kernels, Type type, const Linear *maps, int64_t heads, const void *rows,
                            int64_t row_stride, int64_t head_stride, void *out, int64_t out_stride, int64_t count) {
    HeadsJob job = {.operations = &kernels->variant->of[type], .size = type == BFLOAT16 ? sizeof(bf16) : sizeof(float),
                    .maps = maps, .rows = rows, .out = out, .row_stride = row_stride, .head_stride = head_stride,
                    .out_stride = out_stride, .count = count};
    divide(kernels, heads, heads_share, &job);
}
