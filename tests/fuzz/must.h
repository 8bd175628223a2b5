/* SPDX-License-Identifier: MIT-0 */
/* must - reports a failed check of a fuzz target. */
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
