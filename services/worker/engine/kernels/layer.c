/* A layer in one call: what comes in between lies where it lay the last time. */
#include "kernels.h"

#include <stddef.h>

static void attend_run(bf16 *rows, int64_t stride, bf16 *out, int64_t width, const Run *run, const Attention *attention) {
    const Cache *cache = &attention->cache;
    turn_and_store(rows, stride, run, cache, attention->cosines, attention->sines);
    if (!run->decode)
        attend_chunk(rows, stride, out, run, cache, attention->scratch);
    for (int64_t i = 0; run->decode && i < run->rows; i++)
        attend_row(rows + i * stride, out + i * width, run->slot, run->begin + i + 1, cache, attention->scratch);
}

void attend(bf16 *rows, int64_t stride, bf16 *out, const Run *runs, int64_t count, const Attention *attention) {
    int64_t width = attention->cache.kv_heads * attention->cache.group * attention->cache.head_dim;
    for (const Run *run = runs; run < runs + count; rows += run->rows * stride, out += run->rows * width, run++)
        attend_run(rows, stride, out, width, run, attention);
}

static void run_rows(const Layer *layer, bf16 *hidden, int64_t rows, const Run *runs, int64_t count, float epsilon) {
    const Linear *qkv = &layer->qkv, *output = &layer->output, *gate_up = &layer->gate_up, *down = &layer->down;
    const Between *between = &layer->between;
    rms_norm(hidden, layer->input_norm, between->normed, rows, qkv->in, epsilon);
    multiply_rows(qkv, between->normed, NULL, between->projected, rows);
    attend(between->projected, qkv->out, between->gathered, runs, count, &layer->attention);
    multiply_rows(output, between->gathered, hidden, between->hidden, rows);
    rms_norm(between->hidden, layer->mlp_norm, between->normed, rows, gate_up->in, epsilon);
    multiply_rows(gate_up, between->normed, NULL, between->gate_up, rows);
    silu_times(between->gate_up, between->gated, rows, down->in);
    multiply_rows(down, between->gated, between->hidden, hidden, rows);
}

/* In parts of about as many rows each: what a layer makes of them stays in the cache until it is used. */
void run_layer(const Layer *layer, bf16 *hidden, int64_t rows, const Run *runs, int64_t count, float epsilon) {
    for (int64_t part, taken; rows > 0; rows -= part, runs += taken, count -= taken, hidden += part * layer->qkv.in) {
        int64_t parts = (rows + LAYER_ROWS - 1) / LAYER_ROWS, even = (rows + parts - 1) / parts;
        part = runs->rows;
        for (taken = 1; taken < count; part += runs[taken++].rows)
            if (part + runs[taken].rows / 2 > even || part + runs[taken].rows > LAYER_ROWS)
                break;
        run_rows(layer, hidden, part, runs, taken, epsilon);
    }
}
