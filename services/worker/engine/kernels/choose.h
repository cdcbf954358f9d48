/* Which experts a row uses, and how much each weighs. */
#pragma once

#include "experts.h"

/* The number of floats of working memory that `choose` needs. */
static inline int64_t choosing_floats(const Experts *experts) { return experts->count + experts->groups; }

/* Chooses the experts of one row by their `logits`: the best ones, and of equal ones the first. */
void choose(const Experts *experts, const float *logits, int64_t *chosen, float *weights, float *memory);
