/* SPDX-License-Identifier: MIT-0 */
/* blocks_draw - draws which rank owns which block (blocks_owner.h), as text or as SVG.
 *
 *     dpar_blocks_draw_desc picture = {0};
 *     picture.blocks = &desc;
 *     picture.owner = owner;
 *     picture.stats = &stats;
 *     dpar_text_init(&text, page, sizeof page);
 *     dpar_blocks_draw(&text, &picture, DPAR_BLOCKS_DRAW_TEXT, &why); */
#ifndef DPARI_BLOCKS_BLOCKS_DRAW_H
#define DPARI_BLOCKS_BLOCKS_DRAW_H

#include "../base/text.h"
#include "blocks_owner.h"

/* A picture of owners. Zero it, then set the fields that you need. */
typedef struct dpar_blocks_draw_desc {
    const dpar_blocks_assign_desc *blocks; /* the grid; weights and memory are not used */
    const int32_t *owner;           /* [blocks] a rank, or a negative number for blocks without an
                                       owner */
    const dpar_blocks_stats *stats; /* of these owners, printed above them; NULL if not wanted */
    const int32_t *before;          /* [blocks] owners before blocks moved, drawn above the others;
                                       NULL if there are none */
    const dpar_blocks_stats *stats_before;
    const char *title;            /* printable ASCII; NULL if there is none */
    int32_t upward;               /* 1 draws row 0 at the bottom, as on maps; 0 at the top */
    int64_t layer[DPAR_MAX_DIMS]; /* block along each dim that is not drawn */
} dpar_blocks_draw_desc;

/* The formats of a picture. Both show the last two dims that have more than one block, and name the
 * layer that they show if there are blocks along other dims. */
enum {
    /* 7-bit ASCII: one character per block, A-Z, a-z and 0-9 for ranks 0 to 61, and the same again
     * for the ranks above. '.' is a block without an owner. */
    DPAR_BLOCKS_DRAW_TEXT,
    /* SVG: a colour per rank, grey for blocks without an owner, and a tooltip with the rank. Valid
     * XML without scripts and without fonts other than sans-serif. */
    DPAR_BLOCKS_DRAW_SVG
};

/* Draws owners and appends the picture to a text. Local; costs O(blocks that are drawn). Fails with
 * DPAR_E_ARG and appends nothing if a pointer is NULL, a field is out of range, or there is no such
 * format; fails with DPAR_E_RANGE for too many cells or blocks. */
DPAR_API dpar_status dpar_blocks_draw(dpar_text *text, const dpar_blocks_draw_desc *desc,
                                      int32_t format, dpar_why *why);

#endif
