/* SPDX-License-Identifier: MIT-0 */
/* halo_show - a picture of an exchange of halos: who sends what to whom.
 *
 *     dpar_halo_draw_desc p = {0};
 *     p.halo = &h;
 *     p.rank = 5;
 *     dpar_halo_draw(&text, &p, DPAR_HALO_SVG, &why); */
#ifndef DPARI_INDEX_HALO_SHOW_H
#define DPARI_INDEX_HALO_SHOW_H

#include "../base/text.h"
#include "halo.h"

/* What is shown: the blocks of all ranks in two dims of the grid, and the halo of one rank. */
typedef struct dpar_halo_draw_desc {
    const dpar_halo *halo; /* dpar_halo_check took it */
    int32_t rank;          /* whose halo */
    int32_t across, down;  /* the dims; equal (all zero): the last and the one before it. Of other
                              dims what lies in the rank's own range is shown */
    int64_t bytes;         /* of a point; 0: count points */
    const char *title;     /* printable ASCII; NULL: none */
} dpar_halo_draw_desc;

/* What a picture is drawn as. */
enum { DPAR_HALO_SVG };

/* Draws the picture as SVG. Blocks have their rank's number. The rank's own block is framed, with
 * its halo dashed around it. Each piece has the colour of the rank that it comes from; so have the
 * cells that it copies, with an arrow. A table lists the peers, with pieces and bytes received and
 * sent.
 *
 * Pieces over a fold or round an end are drawn where their cells are, and where they arrive. Grids
 * of more than 4096 blocks show the rank's peers alone. The file is valid XML, without script, with
 * no font but sans-serif. E_ARG with a sentence: no such rank, dim or format, or a rank without
 * points. O(blocks + transfers). */
DPAR_API dpar_status dpar_halo_draw(dpar_text *t, const dpar_halo_draw_desc *p, int32_t format,
                                    dpar_why *why);

#endif
