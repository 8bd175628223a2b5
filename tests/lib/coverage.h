/* SPDX-License-Identifier: MIT-0 */
/* coverage: tests/compile/coverage.sh includes this before everything else. Ranks that are
 * processes end by _exit, which would lose the counts. */
#ifndef DPAR_COVERAGE_H
#define DPAR_COVERAGE_H

#include <unistd.h>

void __gcov_dump(void);

static inline void coverage_exit(int status)
{
    __gcov_dump();
    _exit(status);
}
#define _exit(status) coverage_exit(status)

#endif
