/* SPDX-License-Identifier: MIT-0 */
/* schedule_selftest - tests whether this compiler makes the same schedules as all others. */
#ifndef DPARI_SCHEDULE_SCHEDULE_SELFTEST_H
#define DPARI_SCHEDULE_SCHEDULE_SELFTEST_H

#include "../base/base.h"

/* Makes a schedule by each rule and compares their checksum with that of all other targets. Fails
 * with DPAR_E_MISMATCH. Needs about 2 KB of stack. */
DPAR_API dpar_status dpar_schedule_selftest(dpar_why *why);

#endif
