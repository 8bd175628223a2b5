/* SPDX-License-Identifier: MIT-0 */
/* Points joined along the Hilbert curve, each in the colour of its part. */
#include "pictures.h"
#include "dpar_points.h"

enum { MANY = 400, PARTS = 7, SIDE = 360, LEFT = 20, TOP = 44 };

/* The partition, computed by one rank. */
static struct {
    double at[MANY][2];
    int32_t owner[MANY];
    int64_t key[MANY];
    int along[MANY]; /* point indices in the order of the curve */
    dpar_status status;
    dpar_why why;
} found;

/* Random points, denser towards a corner and in a small square. */
static void scatter(void)
{
    uint32_t seed = 2024;
    int i, d;
    for (i = 0; i < MANY; i++) {
        for (d = 0; d < 2; d++) {
            double x;
            seed = seed * 1664525u + 1013904223u;
            x = (double)(seed >> 8) / 16777216.0;
            found.at[i][d] = i % 3 == 0 ? x : i % 3 == 1 ? x * x : 0.6 + 0.25 * x;
        }
    }
}

static int cut(dpar_comm *world, void *unused)
{
    dpar_points_partition_desc d = {0};
    int i, k;
    (void)unused;
    d.dims = 2;
    d.parts = PARTS;
    d.count = MANY;
    d.position = found.at[0];
    found.status = dpar_points_partition(world, &d, found.owner, found.key, &found.why);
    for (i = 0; i < MANY; i++) { /* insertion sort by key */
        for (k = i; k > 0 && found.key[found.along[k - 1]] > found.key[i]; k--) {
            found.along[k] = found.along[k - 1];
        }
        found.along[k] = i;
    }
    return 0;
}

int draw_partition(dpar_text *t, dpar_why *why)
{
    static const char *const colour[PARTS] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                              "#56B4E9", "#B8860B", "#555555"};
    dpar_world_desc one = {0};
    int i;
    scatter();
    one.threads = 1;
    if (dpar_launch(1, cut, NULL, &one, why) < 0 || found.status < 0) {
        *why = found.status < 0 ? found.why : *why;
        return 1;
    }
    page(t, SIDE + 2 * LEFT, SIDE + TOP + LEFT, "400 points divided into 7 parts");
    put(t, "<path fill=\"none\" stroke=\"#bbb\" d=\"");
    for (i = 0; i < MANY; i++) {
        const double *at = found.at[found.along[i]];
        put(t, "%c%d %d", i == 0 ? 'M' : 'L', LEFT + (int)(at[0] * SIDE),
            TOP + (int)(at[1] * SIDE));
    }
    put(t, "\"/>\n");
    for (i = 0; i < MANY; i++) {
        put(t, "<circle cx=\"%d\" cy=\"%d\" r=\"4\" fill=\"%s\"/>\n",
            LEFT + (int)(found.at[i][0] * SIDE), TOP + (int)(found.at[i][1] * SIDE),
            colour[found.owner[i]]);
    }
    return 0;
}
