/* Working memory, a separate one for each thread. */
#pragma once

#include <stdint.h>

/* Who works: an operation, or experts, heads and adapters, which call operations. */
typedef enum { OPERATION, EXPERTS, HEADS_OF_ROWS, LOW_RANKS, WORKSPACES } Purpose;

/* Returns at least so many bytes, aligned to 64, until this thread calls again for this purpose. Their contents are
   undefined. Without memory the process ends with a message. */
void *workspace_for(Purpose purpose, int64_t bytes);

static inline void *workspace(int64_t bytes) { return workspace_for(OPERATION, bytes); }
