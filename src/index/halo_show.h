/* SPDX-License-Identifier: MIT-0 */
/* halo_show - who sends what to whom when halos are exchanged, as a picture. */
#ifndef DPARI_INDEX_HALO_SHOW_H
#define DPARI_INDEX_HALO_SHOW_H

#include "../base/text.h"
#include "halo.h"

/* What is shown: the blocks of all ranks in two dims of the grid, seen from one rank. */
typedef struct dpar_halo_picture {
    const dpar_halo *halo; /* dpar_halo_check took it */
    int32_t rank;          /* whose halo */
    int32_t across, down;  /* the dims; equal (all zero): the last and the one before it. Of the
                              others what lies in the rank's own range */
    int64_t bytes;         /* of a point; 0: points are counted */
    const char *title;     /* printable ASCII; NULL: none */
} dpar_halo_picture;

/* What a picture is drawn as. */
enum { DPAR_HALO_SVG };

/* SVG: blocks with their rank's number; the rank's own block framed, its halo around it, dashed, in
 * the colour of the rank that each piece comes from, and in the same colour the cells that it is a
 * copy of, with an arrow; a table of peers: pieces and bytes received and sent. Pieces over a fold
 * or round an end lie where their cells are in the grid, and where they arrive. Grids of more than
 * 4096 blocks show the rank's peers alone. Valid XML, no script, no font but sans-serif. E_ARG with
 * a sentence: no such rank, dim or format, a rank without points. O(blocks + transfers). */
DPAR_API dpar_status dpar_halo_draw(dpar_text *t, const dpar_halo_picture *p, int32_t format,
                                    dpar_why *why);

#endif
