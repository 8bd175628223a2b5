/* SPDX-License-Identifier: MIT-0 */
/* coverage - compiled in before everything else by tests/compile/coverage.sh: a rank that is a
 * process ends by _exit, which would leave out what it counted. */
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
