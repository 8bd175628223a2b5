/* SPDX-License-Identifier: MIT-0 */
/* pace: checks that the faster of two ways of copying is found, and found again when the machine
 * changes which one is faster. The machine is simulated by a table of seconds. Expected is the way
 * with the smaller number in all but a small share of the calls. */
#include "dpar_comm.h"

#include "check.h"
#include "random_bits.h"

enum { BYTES = 1 << 20 };

/* Makes `calls` calls and returns how many did not use the faster way. A way that was not used in
 * the previous call takes `cold` times as long, and one call in 30 takes 10 times as long. */
static int32_t astray(dpari_pace *p, const double *seconds, double cold, int32_t calls)
{
    static int32_t last = -1;
    const int32_t best =
        seconds[DPARI_BY_RING] < 0.85 * seconds[DPARI_BY_KERNEL] ? DPARI_BY_RING : DPARI_BY_KERNEL;
    int32_t bad = 0;
    for (int32_t i = 0; i < calls; i++) {
        const int32_t way = dpari_pace_choose(p);
        double took = seconds[way] * (1.0 + (double)(random_bits() >> 40) / (1 << 24) / 20);
        took *= way != last ? cold : 1.0;
        took *= (random_bits() >> 33) % 30 == 0 ? 10.0 : 1.0;
        dpari_pace_tell(p, way, BYTES, took);
        last = way;
        bad += way != best;
    }
    return bad;
}

int main(void)
{
    const double near[2] = {50e-6, 80e-6}, far[2] = {150e-6, 75e-6}, alike[2] = {74e-6, 80e-6};
    dpari_pace p;
    memset(&p, 0, sizeof p);
    for (int32_t round = 0; round < 200; round++) {
        CHECK(astray(&p, near, 2.0, 1500) <= 1500 / 8);
        CHECK(astray(&p, far, 2.0, 1500) <= 1500 / 8);
        CHECK(astray(&p, alike, 2.0, 1500) <= 1500 / 4);
    }
    /* whichever way is tried first, wrong choices are rare */
    for (int32_t round = 0; round < 20; round++) {
        memset(&p, 0, sizeof p);
        CHECK(astray(&p, round % 2 ? near : far, 3.0, 20000) <= 20000 / 16);
    }
    /* a single long wait counts little, and a way that is not clearly faster is not chosen */
    memset(&p, 0, sizeof p);
    CHECK(astray(&p, near, 1.0, 640) <= 640 / 8);
    dpari_pace_tell(&p, DPARI_BY_RING, BYTES, 1.0);
    CHECK(astray(&p, near, 1.0, 640) <= 640 / 8);
    CHECK(dpari_pace_of(&p, 32767) == &p);
    CHECK(dpari_pace_of(&p, 32768) == &p + 1);
    CHECK(dpari_pace_of(&p, 8 << 20) == &p + DPARI_PACES - 1);
    return CHECK_DONE();
}
