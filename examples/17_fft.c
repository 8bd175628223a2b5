/* SPDX-License-Identifier: MIT-0 */
/* 17 - transforms a wave in three dims with FFTW on pencils, and checks its single peak.
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/17_fft.c -o build/17 -lfftw3 -lm
 *   build/17 --ranks 4
 *   24 x 20 x 30 points: the peak is at 2 5 3, the error is below 1e-9
 */
#include "dpar_pencil.h"
#include <complex.h> /* before fftw3.h, whose type is then double complex */
#include <fftw3.h>
#include <math.h>
#include <stdio.h>
enum { NZ = 24, NY = 20, NX = 30, KZ = 2, KY = 5, KX = 3 }; /* points and waves along each dim */

/* Transforms the lines of a pencil, which are contiguous because of desc.order. */
static void transform(const dpar_pencil *pencil, int axis, fftw_complex *a)
{
    const int n = (int)pencil->size[axis];
    const int lines = (int)(pencil->bytes[axis] / (int64_t)sizeof *a) / n;
    fftw_plan plan =
        fftw_plan_many_dft(1, &n, lines, a, NULL, 1, n, a, NULL, 1, n, FFTW_FORWARD, FFTW_ESTIMATE);
    fftw_execute(plan);
    fftw_destroy_plan(plan);
}

static int work(dpar_comm *world, void *unused)
{
    const dpar_pencil_desc desc = {.size = {NZ, NY, NX},
                                   .type = DPAR_F64,
                                   .components = 2, /* complex */
                                   .order = DPAR_PENCIL_AXIS_LAST};
    int64_t lo[3], n[3], i;
    double worst = 0;
    dpar_pencil *pencil = NULL;
    (void)unused;
    dpar_require(world, dpar_pencil_make(world, &desc, &pencil, NULL), NULL);
    fftw_complex *a = (fftw_complex *)dpar_pencil_array(pencil);
    fftw_complex *b = (fftw_complex *)dpar_pencil_array(pencil);
    if (a == NULL || b == NULL) {
        return dpar_fail(world, NULL);
    }
    dpar_pencil_box(pencil, 2, lo, n, NULL);
    for (i = 0; i < n[0] * n[1] * NX; i++) { /* along x; a[z][y][x] */
        const int64_t z = lo[0] + i / (n[1] * NX), y = lo[1] + i / NX % n[1], x = i % NX;
        const double turns = (double)(KZ * z) / NZ + (double)(KY * y) / NY + (double)(KX * x) / NX;
        a[i] = cexp(I * 8 * atan(1) * turns);
    }
    transform(pencil, 2, a);
    dpar_require(world, dpar_pencil_transpose(pencil, 2, 1, a, b), NULL);
    transform(pencil, 1, b); /* along y; b[z][x][y] */
    dpar_require(world, dpar_pencil_transpose(pencil, 1, 0, b, a), NULL);
    transform(pencil, 0, a); /* along z; a[y][x][z] */
    dpar_pencil_box(pencil, 0, lo, n, NULL);
    for (i = 0; i < n[1] * n[2] * NZ; i++) {
        const int64_t y = lo[1] + i / (n[2] * NZ), x = lo[2] + i / NZ % n[2], z = i % NZ;
        const int peak = z == KZ && y == KY && x == KX;
        worst = fmax(worst, cabs(a[i] - (peak ? NZ * NY * NX : 0)));
    }
    worst = dpar_max(world, worst);
    if (world->rank == 0) {
        printf("%d x %d x %d points: the peak is at %d %d %d, the error is %s 1e-9\n", NZ, NY, NX,
               KZ, KY, KX, worst < 1e-9 ? "below" : "ABOVE");
    }
    return dpar_pencil_free(pencil) < 0 ? dpar_fail(world, NULL) : !(worst < 1e-9);
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, work, NULL);
}
