/* SPDX-License-Identifier: MIT-0 */
/* must - how a fuzz target fails. */
#ifndef MUST_H
#define MUST_H

#include <stdlib.h>

static inline void must(int condition)
{
    if (!condition) {
        abort();
    }
}

#endif
