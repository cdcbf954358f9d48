/* Takes tokens out of a row of logits: those whose bit in a mask is 0 get minus infinity. */
#include "kernels.h"

void mask_logits(Type type, void *row, const uint32_t *mask, int64_t size) {
    for (int64_t first = 0; first < size; first += 32) {
        uint32_t bits = mask[first / 32];
        int64_t count = size - first < 32 ? size - first : 32;
        if (bits == 0xffffffffu)
            continue;
        if (type == FLOAT32) {
            uint32_t *logits = (uint32_t *)row + first;
            for (int64_t i = 0; i < count; i++)
                logits[i] = bits >> i & 1 ? logits[i] : 0xff800000u;
        } else {
            uint16_t *logits = (uint16_t *)row + first;
            for (int64_t i = 0; i < count; i++)
                logits[i] = bits >> i & 1 ? logits[i] : 0xff80u;
        }
    }
}
