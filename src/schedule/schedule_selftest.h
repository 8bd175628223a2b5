/* SPDX-License-Identifier: MIT-0 */
/* schedule_selftest - dpar_selftest of schedules. */
#ifndef DPARI_SCHEDULE_SCHEDULE_SELFTEST_H
#define DPARI_SCHEDULE_SCHEDULE_SELFTEST_H

#include "../base/base.h"

/* Makes a schedule by each rule and compares their sum with that of all other targets. E_MISMATCH
 * with a sentence. Not collective. About 2 KB of stack. */
DPAR_API dpar_status dpar_schedule_selftest(dpar_why *why);

#endif
