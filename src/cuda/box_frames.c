/* SPDX-License-Identifier: MIT-0 */
/* Finds out how boxes that add to the same elements meet.
 *
 * The sides of all boxes are sorted by address, and those whose bytes overlap form a frame. From
 * the different steps of its sides, the dims of an array are inferred, and each side is expressed
 * as a box of indices in it. Whether two boxes meet then follows from comparing indices. A frame is
 * cut at the bounds of all its targets, and for each interval of a dim a set of bits tells which
 * boxes contain it; the boxes of a cell are the intersection of the sets of its intervals. Called
 * by move.c and joint_moves.c. */
#include "box_frames.h"

#include "box_kernels.h"

/* Collects the different steps of all sides of a frame, the shortest first. Returns 0 if there are
 * too many. */
static int dpari_cuda_frame_steps(const dpari_cuda_scene *z, dpari_cuda_frame *f)
{
    int32_t i, d, k, m, type = -1;
    f->dims = 0;
    for (i = 0; i < f->n; i++) {
        const int16_t at = z->order[f->first + i];
        const dpari_cuda_side *s = &z->side[at];
        if (s->width != z->side[z->order[f->first]].width ||
            (at % 2 == 0 && type >= 0 && type != z->box[at / 2].to_type)) {
            return 0;
        }
        type = at % 2 == 0 ? z->box[at / 2].to_type : type;
        for (d = 0; d < s->dims; d++) {
            for (k = 0; k < f->dims && f->step[k] < s->step[d]; k++) {
            }
            if (k < f->dims && f->step[k] == s->step[d]) {
                continue;
            }
            if (f->dims == DPAR_MEM_DIMS) {
                return 0;
            }
            for (m = f->dims++; m > k; m--) {
                f->step[m] = f->step[m - 1];
            }
            f->step[k] = s->step[d];
        }
    }
    return 1;
}

/* Returns the bytes that a side spans within a step of `step` bytes. */
static int64_t dpari_cuda_side_within(const dpari_cuda_side *s, int64_t step)
{
    int64_t bytes = s->width;
    int32_t d;
    for (d = 0; d < s->dims && s->step[d] < step; d++) {
        bytes += (s->extent[d] - 1) * s->step[d];
    }
    return bytes;
}

/* Returns where rows of `step` bytes have to begin so that no side extends beyond the end of a row,
 * which is where some side begins. -1 if there is no such place. */
static int64_t dpari_cuda_frame_start(const dpari_cuda_scene *z, const dpari_cuda_frame *f,
                                      const int64_t *rest, int64_t step)
{
    int32_t i, k;
    for (i = 0; i < f->n; i++) {
        const int64_t start = rest[i] % step;
        for (k = 0; k < f->n; k++) {
            const dpari_cuda_side *s = &z->side[z->order[f->first + k]];
            if ((rest[k] - start + step) % step + dpari_cuda_side_within(s, step) > step) {
                break;
            }
        }
        if (k == f->n) {
            return start;
        }
    }
    return -1;
}

/* Expresses the sides of a frame as boxes of indices. Returns 0 if they are not boxes of one array,
 * or are too large. */
static int dpari_cuda_frame_of(dpari_cuda_scene *z, dpari_cuda_frame *f)
{
    int64_t rest[2 * DPARI_CUDA_WINDOW], most = 0;
    int64_t at[DPAR_MEM_DIMS];
    int32_t i, d, k, left = 0;
    if (!dpari_cuda_frame_steps(z, f)) {
        return 0;
    }
    f->base = z->side[z->order[f->first]].base;
    for (i = 0; i < f->n; i++) {
        rest[i] = (int64_t)(z->side[z->order[f->first + i]].base - f->base);
    }
    for (d = f->dims - 1; d >= 0; d--) { /* moves index 0 down until no side crosses the end of a
                                            row */
        const int64_t start = dpari_cuda_frame_start(z, f, rest, f->step[d]);
        const int64_t shift = start > 0 ? f->step[d] - start : 0;
        if (start < 0) {
            return 0;
        }
        f->base -= (uintptr_t)shift;
        for (i = 0; i < f->n; i++) {
            rest[i] = (rest[i] + shift) % f->step[d];
        }
    }
    for (i = 0; i < f->n; i++) {
        left |= rest[i] != 0;
    }
    if (left && (f->dims == DPAR_MEM_DIMS || f->step[0] % z->side[z->order[f->first]].width != 0)) {
        return 0;
    }
    if (left || f->dims == 0) { /* the sides are interleaved columns, or single elements */
        memmove(f->step + 1, f->step, (size_t)f->dims * sizeof f->step[0]);
        f->step[0] = z->side[z->order[f->first]].width;
        f->dims++;
    }
    for (i = 0; i < f->n; i++) {
        dpari_cuda_side *s = &z->side[z->order[f->first + i]];
        int64_t place = (int64_t)(s->base - f->base), hi[DPAR_MEM_DIMS], units = 1;
        for (d = f->dims - 1; d >= 0; d--) {
            at[d] = place / f->step[d];
            place %= f->step[d];
            hi[d] = at[d] + 1;
            for (k = 0; k < s->dims; k++) {
                hi[d] += s->step[k] == f->step[d] ? s->extent[k] - 1 : 0;
            }
            units *= hi[d] - at[d];
            most = hi[d] > most ? hi[d] : most;
            most = units > most ? units : most; /* both stay below 2^30 */
            units = most < DPARI_CUDA_UNITS ? units : 1;
            if (place + dpari_cuda_side_within(s, f->step[d]) > f->step[d]) {
                return 0; /* an index would overflow into the next dim */
            }
        }
        if (place != 0 || most >= DPARI_CUDA_UNITS) {
            return 0;
        }
        memcpy(s->lo, at, sizeof s->lo);
        memcpy(s->hi, hi, sizeof s->hi);
    }
    return 1;
}

static int dpari_cuda_sides_meet(const dpari_cuda_side *a, const dpari_cuda_side *b, int32_t dims)
{
    int32_t d;
    for (d = 0; d < dims && a->lo[d] < b->hi[d] && b->lo[d] < a->hi[d]; d++) {
    }
    return d == dims;
}

/* True if no side of the frame reads data that another box writes. Sets z->meets if several boxes
 * have the same target elements. */
static int dpari_cuda_frame_apart(dpari_cuda_scene *z, const dpari_cuda_frame *f)
{
    int32_t i, k;
    for (i = 0; i < f->n; i++) {
        for (k = 0; k < i; k++) {
            const int16_t a = z->order[f->first + i], b = z->order[f->first + k];
            const int reads = a % 2 && b % 2 && !z->box[a / 2].clear && !z->box[b / 2].clear;
            if (reads || (a % 2 == 0 && b % 2 == 0 && z->meets)) {
                continue;
            }
            if (dpari_cuda_sides_meet(&z->side[a], &z->side[b], f->dims)) {
                if (a % 2 || b % 2) {
                    return 0;
                }
                z->meets = 1;
            }
        }
    }
    return 1;
}

DPARI_INTERNAL int dpari_cuda_scene_of(const dpar_mem_box *box, int32_t n, dpari_cuda_scene *z)
{
    int32_t i, k, gap, sides = 0;
    z->box = box;
    z->n = n;
    z->frames = z->dims = z->meets = 0;
    for (i = 0; i < 2 * n; i++) {
        const dpar_mem_box *b = &box[i / 2];
        if (dpari_cuda_box_empty(b)) {
            continue;
        }
        if (!dpari_cuda_side_of(b, i % 2 == 0, &z->side[i])) {
            return 0;
        }
        z->order[sides++] = (int16_t)i;
    }
    for (gap = sides / 2; gap > 0; gap /= 2) { /* Shell sort */
        for (i = gap; i < sides; i++) {
            const int16_t one = z->order[i];
            for (k = i; k >= gap && z->side[z->order[k - gap]].base > z->side[one].base; k -= gap) {
                z->order[k] = z->order[k - gap];
            }
            z->order[k] = one;
        }
    }
    for (i = 0; i < sides; i = k) {
        uintptr_t end = z->side[z->order[i]].end;
        int32_t writes = 0, to = 0;
        dpari_cuda_frame f;
        for (k = i; k < sides && (k == i || z->side[z->order[k]].base < end); k++) {
            const dpari_cuda_side *s = &z->side[z->order[k]];
            end = s->end > end ? s->end : end;
            to |= z->order[k] % 2 == 0;
            writes |= z->box[z->order[k] / 2].clear != 0;
        }
        if (!to && (!writes || k == i + 1)) {
            continue;
        }
        f.first = i;
        f.n = k - i;
        if (!dpari_cuda_frame_of(z, &f) || !dpari_cuda_frame_apart(z, &f)) {
            return 0;
        }
        if (to) {
            z->frame[z->frames++] = f;
            z->dims = f.dims > z->dims ? f.dims : z->dims;
        }
    }
    return 1;
}

static int dpari_cuda_cells_cut(dpari_cuda_cells *c, int32_t d, int64_t at)
{
    int32_t k = c->cuts[d];
    while (k > 0 && c->cut[d][k - 1] > at) {
        k--;
    }
    if (k > 0 && c->cut[d][k - 1] == at) {
        return 1;
    }
    if (c->cuts[d] == DPARI_CUDA_CUTS) {
        return 0;
    }
    memmove(&c->cut[d][k + 1], &c->cut[d][k], (size_t)(c->cuts[d]++ - k) * sizeof c->cut[d][0]);
    c->cut[d][k] = at;
    return 1;
}

DPARI_INTERNAL int dpari_cuda_cells_of(const dpari_cuda_scene *z, const dpari_cuda_frame *f,
                                       dpari_cuda_cells *c)
{
    int64_t cells = 1;
    int32_t i, k, d;
    c->n = 0;
    memset(c->cuts, 0, sizeof c->cuts);
    for (i = 0; i < f->n; i++) {
        const int16_t side = z->order[f->first + i];
        for (k = side % 2 == 0 ? c->n++ : -1; k > 0 && c->to[k - 1] > side / 2; k--) {
            c->to[k] = c->to[k - 1];
        }
        if (k >= 0) {
            c->to[k] = (int16_t)(side / 2);
        }
    }
    for (d = 0; d < f->dims; d++) {
        for (i = 0; i < c->n; i++) {
            const dpari_cuda_side *s = &z->side[2 * c->to[i]];
            if (!dpari_cuda_cells_cut(c, d, s->lo[d]) || !dpari_cuda_cells_cut(c, d, s->hi[d])) {
                return 0;
            }
        }
        cells *= c->cuts[d] - 1;
        if (cells > DPARI_CUDA_CELLS) {
            return 0;
        }
        memset(c->in[d], 0, (size_t)c->cuts[d] * sizeof c->in[d][0]);
        for (i = 0; i < c->n; i++) {
            const dpari_cuda_side *s = &z->side[2 * c->to[i]];
            for (k = 0; k + 1 < c->cuts[d]; k++) {
                const int in = s->lo[d] <= c->cut[d][k] && c->cut[d][k] < s->hi[d];
                c->in[d][k][i / 64] |= (uint64_t)in << (i % 64);
            }
        }
    }
    return 1;
}
