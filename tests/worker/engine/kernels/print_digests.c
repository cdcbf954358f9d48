/* What a variant of the kernels makes of fixed inputs, at each of its levels of vector instructions: to be compiled for
   other CPUs, or with sanitizers, with the sources of the kernels, and compared.

   print_digests [VARIANT [LEVEL ...]] */
#include <stdio.h>

#include "kernels.h"

int main(int count, char **given) {
    const char *name = count > 1 ? given[1] : "portable";
    for (const char *const *level = count > 2 ? (const char *const *)given + 2 : find_levels(); *level; level++) {
        const char *reason;
        const Variant *variant = find_variant(name, *level, &reason);
        if (!variant)
            return 1;
        for (int threads = 1; threads <= 2; threads++) {
            Kernels kernels = {variant, threads};
            printf("%s %d %016llx\n", *level, threads, (unsigned long long)digest(&kernels));
        }
    }
    return 0;
}
