/* A layer in one call: what comes in between lies where it lay the last time. */
#include "kernels.h"

#include <stddef.h>

static void attend_run(bf16 *rows, int64_t stride, bf16 *out, const Run *run, const Attention *attention) {
    const Cache *cache = &attention->cache;
    int64_t width = cache->kv_heads * cache->group * cache->head_dim;
    bf16 *row = rows + run->first * stride, *result = out + run->first * width;
    turn_and_store(row, stride, run, cache, attention->cosines, attention->sines);
    if (!run->decode)
        attend_chunk(row, stride, result, run, cache, attention->scratch);
    for (int64_t i = 0; run->decode && i < run->rows; i++)
        attend_row(row + i * stride, result + i * width, run->slot, run->begin + i + 1, cache, attention->scratch);
}

void attend(bf16 *rows, int64_t stride, bf16 *out, const Run *runs, int64_t count, const Attention *attention) {
    for (int64_t i = 0; i < count; i++)
        attend_run(rows, stride, out, &runs[i], attention);
}

void run_layer(const Layer *layer, bf16 *hidden, int64_t rows, const Run *runs, int64_t count, float epsilon) {
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
