/* SPDX-License-Identifier: MIT-0 */
/* inner - private: what the rooms above use of base. */
#ifndef DPARI_BASE_INNER_H
#define DPARI_BASE_INNER_H

#include "arith.h"
#include "box.h"

/* Is every element of `inner` in `outer`? An empty box is in every box of as many dims. */
DPARI_DOOR int dpari_box_contains(const dpar_box *outer, const dpar_box *inner);

/* ---- of this header's own modules ---- */

/* What both boxes hold, into *out (may be one of them). 0 when that is empty or the dims differ;
 * then *out is untouched. O(dims). */
DPARI_API int dpari_box_intersect(const dpar_box *a, const dpar_box *b, dpar_box *out);

#endif
