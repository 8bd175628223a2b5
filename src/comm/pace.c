/* SPDX-License-Identifier: MIT-0 */
/* Chooses the faster of two methods of copying by measuring both in use. pace.h explains the
 * methods.
 *
 * Each size class keeps the time per byte of both. The faster one is used, and now and then the
 * other one is tried again, less often the longer it has been slower. Called by coll.c and
 * p2p.c. */
#include "pace_private.h"

DPARI_INTERNAL dpari_pace *dpari_pace_of(dpari_pace *pace, int64_t bytes)
{
    return &pace[bytes < INT64_C(32) << 10    ? 0
                 : bytes < INT64_C(512) << 10 ? 1
                 : bytes < INT64_C(8) << 20   ? 2
                                              : 3];
}

/* The other way is tried a few times in a row, for the first time is slow: seldom, the less often
 * the longer it lost; and as soon as the chosen one has become slower than it was. */
static int32_t dpari_pace_is_due(dpari_pace *p)
{
    const uint32_t last = 1024;
    if (++p->turns <= p->wait && !(p->known > 0.0 && p->per_byte[p->way] > 1.4 * p->known)) {
        return 0;
    }
    p->turns = 0;
    p->wait = p->wait < last / 2 ? 2 * p->wait : last;
    p->known = p->per_byte[p->way];
    p->per_byte[!p->way] = 0.0;
    return 1;
}

DPARI_INTERNAL int32_t dpari_pace_choose(dpari_pace *p)
{
    enum { TRIALS = 3, FIRST = 64 };
    const double ring = p->per_byte[DPARI_BY_RING], kernel = p->per_byte[DPARI_BY_KERNEL];
    const int32_t way = ring < 0.85 * kernel ? DPARI_BY_RING : DPARI_BY_KERNEL;
    if (p->trial > 0) {
        p->trial--;
        return !p->way;
    }
    if (way != p->way || p->wait == 0) {
        p->way = way;
        p->turns = 0;
        p->wait = p->per_byte[!way] > 0.0 ? FIRST : TRIALS;
        p->known = p->per_byte[way];
    }
    if (!dpari_pace_is_due(p)) {
        return way;
    }
    p->trial = TRIALS - 1;
    return !way;
}

/* A wait for a rank that is late makes one slow, nothing makes one fast: the better of two counts
 * at once, the worse by and by. */
DPARI_INTERNAL void dpari_pace_tell(dpari_pace *p, int32_t way, int64_t bytes, double seconds)
{
    double *known = &p->per_byte[way];
    const double now = seconds / (double)bytes;
    if (*known <= 0.0 || now < *known) {
        *known = now;
    } else {
        *known += ((now < 2 * *known ? now : 2 * *known) - *known) / 8;
    }
}
