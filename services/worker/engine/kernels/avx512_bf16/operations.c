/* The operations of the variant. */
#ifdef __x86_64__
#include "operations.h"

#include "../variants.h"
#include "../workspace.h"

/* Rows of a prompt are computed together, generated rows one by one. */
static void attend_run(Means means, void *rows, int64_t stride, void *out, const Run *run,
                       const Attention *attention, Share kv_heads) {
    const Cache *cache = &attention->cache;
    int64_t width = cache->kv_heads * cache->group * cache->head_dim;
    float *scratch = workspace(scratch_floats(run->begin + run->rows, cache->head_dim) * sizeof(float));
    rotate_and_store_by_vectors(rows, stride, run, attention, kv_heads);
    if (run->kind != GENERATED)
        attend_chunk(means, rows, stride, out, run, attention, scratch, kv_heads);
    for (int64_t i = 0; run->kind == GENERATED && i < run->rows; i++)
        attend_row((bf16 *)rows + i * stride, (bf16 *)out + i * width, run->slot, run->begin + i + 1, attention,
                   scratch, kv_heads);
}

static void attend_by_dot_products(void *rows, int64_t stride, void *out, const Run *run, const Attention *attention,
                                   Share kv_heads) {
    attend_run(DOTS, rows, stride, out, run, attention, kv_heads);
}

static void attend_by_fma(void *rows, int64_t stride, void *out, const Run *run, const Attention *attention,
                          Share kv_heads) {
    attend_run(FMA, rows, stride, out, run, attention, kv_heads);
}

Operations avx512_bf16_operations(int by_fma) {
    const Operations *portable = &portable_avx512[BFLOAT16];
    return (Operations){by_fma ? multiply_by_fma : multiply_by_dot_products,
                        rms_norm_by_vectors,
                        portable->layer_norm,
                        portable->gelu,
                        silu_times_by_vectors,
                        gelu_times_by_vectors,
                        by_fma ? attend_by_fma : attend_by_dot_products,
                        portable->lay_out,
                        portable->likelihoods};
}
#endif
