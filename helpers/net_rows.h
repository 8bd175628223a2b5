/* SPDX-License-Identifier: MIT-0 */
/* net_rows - reads published all-reduces, all-gathers and all-to-alls across nodes and racks
 * (tests/data/cost/nccl_tests_net.csv), and predicts the time of each. */
#ifndef DPAR_HELPERS_NET_ROWS_H
#define DPAR_HELPERS_NET_ROWS_H

#include "dpar_cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct net_row {
    char text[512]; /* the line, cut at its commas */
    const char
        *cell[9]; /* source, gpu, nodes, chips per node, fabric, collective, bytes, us, machine */
    int kind, ranks, marked;
    double bytes, us, predicted_us;
} net_row;

static FILE *net_open(const char *dir)
{
    char path[256], head[512];
    FILE *f;
    snprintf(path, sizeof path, "%s/nccl_tests_net.csv", dir);
    f = fopen(path, "r");
    return f != NULL && fgets(head, sizeof head, f) != NULL ? f : NULL;
}

/* Reads the next row. Returns 0 at the end. An unknown machine has prediction 0. */
static int net_next(FILE *f, net_row *r)
{
    static const char *const kinds[] = {"all_reduce", "all_gather", "reduce_scatter", "alltoall"};
    dpar_collective_cost cost;
    dpar_cluster c;
    dpar_cluster_group g;
    dpar_why why;
    char machine[64], *p;
    int i;
    memset(r, 0, sizeof *r);
    if (fgets(r->text, sizeof r->text, f) == NULL) {
        return 0;
    }
    r->text[strcspn(r->text, "\n")] = 0;
    for (i = 0, p = r->text; i < 9; i++) {
        r->cell[i] = p;
        p += strcspn(p, ",");
        if (*p != 0) {
            *p++ = 0;
        }
    }
    snprintf(machine, sizeof machine, "%s", r->cell[8]);
    for (p = machine; *p != 0; p++) {
        *p = (char)(*p == ';' ? ',' : *p);
    }
    for (i = 0; i < 3 && strcmp(r->cell[5], kinds[i]) != 0; i++) {
    }
    r->kind = DPAR_CALL_ALL_REDUCE + i;
    r->ranks = atoi(r->cell[2]) * atoi(r->cell[3]);
    r->bytes = atof(r->cell[6]);
    r->us = atof(r->cell[7]);
    /* These rows set constants: sizes of the smallest groups of each network except GCP's. */
    r->marked = atoi(r->cell[2]) <= 2 && strstr(r->cell[4], "gIB") == NULL &&
                (r->bytes == 1048576.0 || r->bytes == 67108864.0 || r->bytes == 2147483648.0 ||
                 r->bytes == 8589934592.0);
    if (dpar_cluster_read(&c, machine, strlen(machine), &why) == DPAR_OK) {
        dpar_cluster_group_init(&g, &c, r->ranks, 1);
        dpar_collective_predict(&c, &g, r->kind, r->bytes, &cost);
        r->predicted_us = 1e6 * cost.seconds;
    }
    return 1;
}

#endif
