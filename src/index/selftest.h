/* SPDX-License-Identifier: MIT-0 */
/* selftest - does this compiler, for this processor, compute what all others do?
 *
 *     if (dpar_selftest(&why) != DPAR_OK) {
 *         puts(why.text);
 *     } */
#ifndef DPARI_INDEX_SELFTEST_H
#define DPARI_INDEX_SELFTEST_H

#include "../base/base.h"

/* Computes some hundred answers and compares their sums with those of all other targets: 64-bit
 * arithmetic, splits, a mesh, a layout, the transfers of a halo. They are integers of fixed widths,
 * so that no target may differ. E_MISMATCH with a sentence: what differs first; a compiler, or its
 * library for 64-bit integers, is at fault. Not collective. About 3 KB of stack; milliseconds. */
DPAR_API dpar_status dpar_selftest(dpar_why *why);

#endif
