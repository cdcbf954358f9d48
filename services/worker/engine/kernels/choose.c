#include "choose.h"

#include "power.h"

static float likelihood(float logit) {
    float power = power_of_e(logit < 0.0f ? logit : -logit);
    return (logit < 0.0f ? power : 1.0f) / (1.0f + power);
}

/* Finds the places of the `most` largest of `count` numbers: the largest first, and of equal ones the first. */
static void find_largest(const float *numbers, int64_t count, int64_t most, int64_t *places) {
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i < most ? i : most;
        for (; at > 0 && numbers[i] > numbers[places[at - 1]]; at--)
            if (at < most)
                places[at] = places[at - 1];
        if (at < most)
            places[at] = i;
    }
}

/* How good a group is: as its best expert, or as the sum of its best two. */
static float rate_group(const Experts *experts, const float *wanted) {
    int64_t each = experts->count / experts->groups;
    float best = wanted[0], second = -__builtin_inff();
    for (int64_t i = 1; i < each; i++) {
        if (wanted[i] > best)
            second = best, best = wanted[i];
        else if (wanted[i] > second)
            second = wanted[i];
    }
    return experts->bias ? best + second : best;
}

/* Leaves only the experts of the best groups. A group is among these if fewer than so many are better, or as good and
   before it. */
static void leave_best_groups(const Experts *experts, float *wanted, float *rates) {
    int64_t each = experts->count / experts->groups;
    for (int64_t group = 0; group < experts->groups; group++)
        rates[group] = rate_group(experts, wanted + group * each);
    for (int64_t group = 0; group < experts->groups; group++) {
        int64_t better = 0;
        for (int64_t other = 0; other < experts->groups; other++)
            better += other < group ? rates[other] >= rates[group] : rates[other] > rates[group];
        for (int64_t i = group * each; better >= experts->chosen_groups && i < (group + 1) * each; i++)
            wanted[i] = -__builtin_inff();
    }
}

/* Weighs the chosen experts by their shares of all, before they are divided by anything. Returns the sum of all. */
static float weigh_shares(const Experts *experts, const float *logits, const int64_t *chosen, float *weights) {
    float most = logits[0], sum = 0.0f;
    for (int64_t i = 1; i < experts->count; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int64_t k = 0; k < experts->chosen; k++)
        weights[k] = power_of_e(logits[chosen[k]] - most);
    for (int64_t i = 0; !experts->normalized && i < experts->count; i++)
        sum += power_of_e(logits[i] - most);
    return sum;
}

void choose(const Experts *experts, const float *logits, int64_t *chosen, float *weights, float *memory) {
    const float *wanted = logits;
    float sum = 1.0f, scale = (float)experts->scale;
    if (experts->bias || experts->groups > 1) {
        for (int64_t i = 0; i < experts->count; i++)
            memory[i] = experts->bias ? likelihood(logits[i]) + experts->bias[i] : logits[i];
        wanted = memory;
        if (experts->groups > 1)
            leave_best_groups(experts, memory, memory + experts->count);
    }
    find_largest(wanted, experts->count, experts->chosen, chosen);
    if (!experts->bias)
        sum = weigh_shares(experts, logits, chosen, weights);
    for (int64_t k = 0; experts->bias && k < experts->chosen; k++)
        weights[k] = likelihood(logits[chosen[k]]);
    if (experts->normalized) {
        sum = 0.0f;
        for (int64_t k = 0; k < experts->chosen; k++)
            sum += weights[k];
    }
    for (int64_t k = 0; k < experts->chosen; k++)
        weights[k] /= sum;
    for (int64_t k = 0; scale != 1.0f && k < experts->chosen; k++)
        weights[k] *= scale;
}
