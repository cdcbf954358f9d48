/* Memory to work in, each thread's own. */
#pragma once

#include <stdint.h>

/* At least so many bytes, at a multiple of 64, until this thread asks again. What is in them is not defined. Where there
   are none left, the process ends with a message. */
void *workspace(int64_t bytes);
