/* SPDX-License-Identifier: MIT-0 */
/* halo_show - draws an exchange of halos, which shows what each rank sends to which other one.
 *
 *     dpar_halo_draw_desc p = {0};
 *     p.halo = &h;
 *     p.rank = 5;
 *     dpar_halo_draw(&text, &p, DPAR_HALO_SVG, &why);
 */
#ifndef DPARI_DEBUG_HALO_SHOW_H
#define DPARI_DEBUG_HALO_SHOW_H

#include "../base/text.h"
#include "../index/halo.h"

/* A picture of the blocks of all ranks in two dims of a grid, and of the halo of one rank. Zero it,
 * then set the fields. */
typedef struct dpar_halo_draw_desc {
    const dpar_halo *halo; /* accepted by dpar_halo_check */
    int32_t rank;          /* the rank whose halo is drawn */
    /* The two dims that are drawn. If they are equal, such as all zero, they are the last dim and
     * the one before it. In other dims the picture shows the rank's own range. */
    int32_t across, down;
    int64_t bytes;     /* bytes of a point; 0 counts points instead of bytes */
    const char *title; /* printable ASCII; NULL if there is none */
} dpar_halo_draw_desc;

/* The formats of a picture. */
enum { DPAR_HALO_SVG };

/* Draws a picture as SVG and appends it to a text. Each block has its rank's number. The rank's own
 * block is framed, with its halo dashed around it. Each piece of the halo, and the cells that it
 * copies, have the colour of the rank that sends it, and an arrow connects them. A table lists the
 * peers with the pieces and bytes received and sent.
 *
 * Pieces that cross a fold or a periodic end are drawn twice: where their cells are, and where they
 * arrive. Grids of more than 4096 blocks show only the rank's peers. The file is valid XML without
 * scripts and without fonts other than sans-serif. Fails with DPAR_E_ARG if there is no such rank,
 * dim or format, or the rank has no points. Costs O(blocks + transfers).
 */
DPAR_API dpar_status dpar_halo_draw(dpar_text *text, const dpar_halo_draw_desc *desc,
                                    int32_t format, dpar_why *why);

#endif
