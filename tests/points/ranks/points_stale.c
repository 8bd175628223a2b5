/* SPDX-License-Identifier: MIT-0 */
/* Tests for points and halos what tests/comm/ranks/stale.c tests: a rank begins an exchange and
 * sleeps; the other times out and overwrites its values; if the first one then gets OK, it must
 * have got the right values. */
#include "dpar_halo.h"
#include "dpar_points.h"
#include "run_oracle.h"

enum { N = 4000, WAYS = 4 };

typedef struct board {
    volatile int gave_up, begun, wrong, told;
    int way; /* DPAR_POINTS_x; WAYS means a halo */
} board;

static void until(const volatile int *flag)
{
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) {
        usleep(1000);
    }
}

/* Rank 0 times out; rank 1 learns it afterwards. */
static int one(dpar_comm *c, void *arg)
{
    board *b = (board *)arg;
    static int64_t id[N];
    dpar_points_desc d;
    dpar_points_field v;
    dpar_points *p = NULL;
    dpar_grid_desc g;
    dpar_grid *grid = NULL;
    dpar_why why;
    dpar_status s;
    double *x = NULL, *others;
    void *values = NULL;
    int i;
    memset(&d, 0, sizeof d), memset(&v, 0, sizeof v), memset(&g, 0, sizeof g);
    if (b->way == WAYS) {
        g.dims = 2, g.cells[0] = 4, g.cells[1] = N, g.parts[0] = 2, g.parts[1] = 1, g.halo = 1;
        if (dpar_grid_make(c, &g, &grid, &why) < 0) {
            return 1;
        }
        x = dpar_grid_array(grid, DPAR_F64, NULL);
        others = x - (N + 2); /* the previous row, which rank 0 has */
    } else {
        d.own_count = N;
        d.ghost_count = N;
        d.ghost_id = id;
        d.method = b->way;
        for (i = 0; i < N; i++) {
            id[i] = (1 - c->rank) * N + i;
        }
        if (dpar_points_make(c, &d, &p, &why) < 0 || dpar_comm_alloc(c, 2 * N * 8, &values) < 0) {
            return 1;
        }
        x = (double *)values;
        v.type = DPAR_F64, v.data = x;
        others = x + N;
    }
    for (i = 0; i < N; i++) {
        x[i] = 1;
    }
    s = p != NULL ? dpar_points_exchange_many(p, &v, 1) : dpar_grid_exchange(grid, x);
    if (s < 0 || dpar_barrier(c, NULL) < 0) {
        return 1;
    }
    c->timeout_s = 0.2;
    if (c->rank == 1) {
        s = p != NULL ? dpar_points_begin(p, &v, 1) : dpar_grid_begin(grid, x);
        __atomic_store_n(&b->begun, 1, __ATOMIC_RELEASE);
        until(&b->gave_up);
        s = s < 0 ? s : p != NULL ? dpar_points_end(p) : dpar_grid_end(grid, x);
        for (i = 0; i < N && s == DPAR_OK; i++) {
            b->wrong += others[i] == -7;
        }
        b->told = s;
        return 0;
    }
    until(&b->begun);
    s = p != NULL ? dpar_points_exchange_many(p, &v, 1) : dpar_grid_exchange(grid, x);
    for (i = 0; i < N; i++) {
        x[i] = -7;
    }
    __atomic_store_n(&b->gave_up, 1 + (s < 0), __ATOMIC_RELEASE);
    usleep(50000);
    return 0;
}

int main(void)
{
    void *p = mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board *b = (board *)p;
    dpar_world_desc o;
    dpar_why why;
    int way, bad = 0, late = 0;
    for (way = 0; way <= WAYS; way++) {
        memset(b, 0, sizeof *b);
        b->way = way;
        memset(&o, 0, sizeof o);
        o.timeout_s = 60;
        (void)dpar_launch(2, one, b, &o, &why);
        late += b->gave_up == 2;
        if (b->wrong != 0 || b->gave_up == 0) {
            printf("WRONG way %d: told %d, and %d values are others\n", way, b->told, b->wrong);
            bad++;
        }
    }
    printf("%d exchanges, %d given up, %d wrong\n", WAYS + 1, late, bad);
    return bad != 0 || late == 0;
}
