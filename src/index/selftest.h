/* SPDX-License-Identifier: MIT-0 */
/* selftest - tests whether this compiler computes for this processor what all others compute.
 *
 *     if (dpar_selftest(&why) != DPAR_OK) {
 *         puts(why.text);
 *     }
 */
#ifndef DPARI_INDEX_SELFTEST_H
#define DPARI_INDEX_SELFTEST_H

#include "../base/base.h"

/* Computes some hundred results and compares their checksums with those of all other targets:
 * 64-bit arithmetic, splits, a mesh, a layout, the transfers of a halo. All results are integers of
 * fixed widths, so that no target may differ.
 *
 * Fails with DPAR_E_MISMATCH, and the message names the first difference. The fault is then in the
 * compiler or in its library for 64-bit integers. Needs about 3 KB of stack and takes milliseconds.
 */
DPAR_API dpar_status dpar_selftest(dpar_why *why);

#endif
