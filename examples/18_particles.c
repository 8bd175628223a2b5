/* SPDX-License-Identifier: MIT-0 */
/* 18 - lets particles drift through a periodic box. Each step sends them to their owners and finds
 * ghosts. The number of close pairs stays the same, on any number of ranks.
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/18_particles.c -o build/18 && build/18 --ranks 4
 *   400 particles, 1296 close ones before, 1296 after
 */
#include "dpar_particles.h"
#include <stdio.h>

enum { ALL = 400, CAPACITY = 20000, STEPS = 50 };
static double x[CAPACITY][3]; /* own particles first, then ghosts */
static int64_t id[CAPACITY];

static int count_close(dpar_comm *world, int64_t own, int64_t ghosts, int64_t *close)
{
    *close = 0;
    for (int64_t i = 0; i < own; i++) {
        for (int64_t j = 0; j < own + ghosts; j++) {
            double square = 0.0;
            for (int d = 0; d < 3; d++) {
                square += (x[i][d] - x[j][d]) * (x[i][d] - x[j][d]);
            }
            *close += i != j && square < 1.0;
        }
    }
    return dpar_all_reduce(world, close, close, 1, DPAR_I64, DPAR_SUM, NULL);
}

static int drift(dpar_comm *world, void *unused)
{
    const dpar_particles_field field[2] = {{.data = x, .type = DPAR_F64, .components = 3},
                                           {.data = id, .type = DPAR_I64}};
    dpar_particles_desc desc = {.dims = 3, .cutoff = 1.0};
    dpar_particles_arrays arrays = {.position = field[0], .capacity = CAPACITY};
    dpar_particles *particles = NULL;
    dpar_why why;
    int64_t close, before = -1;
    (void)unused;
    for (int d = 0; d < 3; d++) {
        desc.high[d] = 8.0;
        desc.periodic[d] = 1;
    }
    if (dpar_particles_make(world, &desc, &particles, &why) < 0) {
        return dpar_fail(world, &why);
    }
    for (int64_t i = world->rank; i < ALL; i += world->size) { /* anywhere, not on their owners */
        for (int64_t d = 0; d < 3; d++) {
            x[arrays.count][d] = (double)((i * 7919 + 1) * (d + 3) * (i + d) % 8192) / 1024.0;
        }
        id[arrays.count++] = i;
    }
    arrays.fields = field; /* both move with a particle, */
    arrays.field_count = 2;
    arrays.ghost_fields = 1; /* but ghosts need only the position */
    for (int step = 0; step < STEPS; step++) {
        if (dpar_particles_migrate(particles, &arrays) < 0 ||
            dpar_particles_ghosts(particles, &arrays) < 0 ||
            count_close(world, arrays.count, particles->ghost_count, &close) < 0) {
            return dpar_fail(world, NULL);
        }
        before = before < 0 ? close : before;
        for (int64_t i = 0; i < arrays.count * 3; i++) {
            x[i / 3][i % 3] += 0.3125; /* exact, so that distances stay the same */
        }
    }
    if (world->rank == 0) {
        printf("%d particles, %ld close ones before, %ld after\n", ALL, (long)before, (long)close);
    }
    return dpar_particles_free(particles) < 0 || close != before || before == 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, drift, NULL);
}
