/* SPDX-License-Identifier: MIT-0 */
/* Brings boxes into the form that kernels need: dims are sorted by their steps in the target and
 * joined if they are contiguous, and the widest unit that both addresses and all steps allow is
 * chosen. A box with more than 2^30 units is cut along its last dim, so that indices fit in 31
 * bits. dpari_cuda_magic replaces the divisions by extents. */
#include "box_prepare.h"

#include "box_overlap.h"

/* One dim of a box while it is prepared, with steps in bytes. */
struct dpari_cuda_dim {
    int64_t extent, to, from;
};

/* Simplifies a box: drops dims of length 1, reverses dims in which `to` has a negative step, sorts
 * the dims by their steps in `to`, and joins dims that are contiguous on both sides. Returns the
 * number of dims, or -1 for an empty box. */
static int32_t dpari_cuda_tidy(const dpar_mem_box *box, dpari_cuda_dim *dim, unsigned char **to,
                               unsigned char **from)
{
    const int64_t to_width = dpari_cuda_width(box->to_type);
    const int64_t from_width = dpari_cuda_width(box->from_type);
    int32_t n = 0, d, k, made = 0;
    *to = (unsigned char *)box->to;
    *from = (unsigned char *)box->from;
    for (d = 0; d < box->dims; d++) {
        dpari_cuda_dim one = {box->extent[d], box->to_stride[d] * to_width,
                              box->from_stride[d] * from_width};
        if (one.extent <= 0) {
            return -1;
        }
        if (one.extent == 1) {
            continue;
        }
        if (one.to < 0) {
            *to += (one.extent - 1) * one.to;
            *from += (one.extent - 1) * one.from;
            one.to = -one.to;
            one.from = -one.from;
        }
        for (k = n++; k > 0 && dim[k - 1].to > one.to; k--) {
            dim[k] = dim[k - 1];
        }
        dim[k] = one;
    }
    for (d = 1; d < n; d++) {
        if (dim[d].to == dim[made].extent * dim[made].to &&
            dim[d].from == dim[made].extent * dim[made].from) {
            dim[made].extent *= dim[d].extent;
        } else {
            dim[++made] = dim[d];
        }
    }
    return n > 0 ? made + 1 : 0;
}

/* Returns the widest unit, a power of two up to 16 bytes, that divides the address and all steps
 * but the first. */
static int32_t dpari_cuda_grain(uintptr_t a, const dpari_cuda_dim *dim, int32_t n, int of_to)
{
    int32_t d, width = 16;
    for (d = 1; d < n; d++) {
        a |= (uintptr_t)(of_to ? dim[d].to : dim[d].from);
    }
    while (width > 1 && a % (uintptr_t)width != 0) {
        width /= 2;
    }
    return width;
}

/* Returns the type to which values are rounded before they are converted; by default from_type,
 * which does not change them. */
DPARI_INTERNAL int32_t dpari_cuda_through(const dpar_mem_box *box)
{
    return box->round_type != DPAR_TYPE_NONE ? box->round_type : box->from_type;
}

/* Chooses the kind and width of a box. Returns the number of elements in a unit. */
static int32_t dpari_cuda_choose(const dpar_mem_box *box, const dpari_cuda_dim *dim, int32_t n,
                                 const unsigned char *to, const unsigned char *from,
                                 dpari_cuda_box *p)
{
    const int32_t tw = dpari_cuda_width(box->to_type), fw = dpari_cuda_width(box->from_type);
    const int32_t narrow = tw < fw ? box->to_type : box->from_type;
    const int32_t through = dpari_cuda_through(box);
    const int plain = box->to_type == box->from_type && through == box->to_type;
    const int dense = n > 0 && dim[0].to == tw && dim[0].from == fw;
    const int32_t tg = dense ? dpari_cuda_grain((uintptr_t)to, dim, n, 1) : tw;
    const int32_t fg = dense ? dpari_cuda_grain((uintptr_t)from, dim, n, 0) : fw;
    const int32_t to_four = tw < 4 ? 8 : 16; /* the alignment that four elements need */
    const int32_t from_four = fw < 4 ? 8 : 16;
    p->kind = DPARI_CUDA_ANY;
    p->width = (uint8_t)tw;
    if (plain && box->op == DPAR_COPY && !box->negate) {
        int32_t width = tg < fg ? tg : fg;
        while (width > tw && dim[0].extent * tw % width != 0) {
            width /= 2;
        }
        p->kind = DPARI_CUDA_RAW;
        p->width = (uint8_t)(width < tw ? tw : width);
    } else if (plain && (tw == 8 || tw == 4) && tg == 16 && fg == 16 && dense &&
               (box->to_type == DPAR_F32 || box->to_type == DPAR_F64) && box->op != DPAR_COPY &&
               dim[0].extent * tw % 16 == 0) {
        p->kind = DPARI_CUDA_MEET;
        p->width = 16;
    } else if (tw != fw && box->op == DPAR_COPY && !box->negate && dense &&
               (through == narrow || through == box->from_type) && dim[0].extent % 4 == 0 &&
               tg >= to_four && fg >= from_four) {
        p->kind = DPARI_CUDA_CAST;
        return 4;
    }
    return p->width / tw;
}

/* Prepares a box for the kernels. Returns 1, or 0 if it is empty, or -1 if it has too many units
 * before its last dim. */
DPARI_INTERNAL int dpari_cuda_prepare(const dpar_mem_box *box, dpari_cuda_cut *cut)
{
    dpari_cuda_dim dim[DPAR_MEM_DIMS];
    dpari_cuda_box *p = &cut->piece;
    unsigned char *to, *from;
    int32_t n = dpari_cuda_tidy(box, dim, &to, &from), each, d;
    int64_t inner = 1;
    if (n < 0) {
        return 0;
    }
    memset(p, 0, sizeof *p);
    each = dpari_cuda_choose(box, dim, n, to, from, p);
    if (n == 0) {
        dim[0].extent = 1;
        dim[0].to = dim[0].from = 0;
        n = 1;
    } else {
        dim[0].extent /= each;
        dim[0].to *= each;
        dim[0].from *= each;
    }
    p->to = to;
    p->from = from;
    p->dims = (uint8_t)n;
    p->to_type = (uint8_t)box->to_type;
    p->from_type = (uint8_t)box->from_type;
    p->through = (uint8_t)dpari_cuda_through(box);
    p->op = (uint8_t)box->op;
    p->negate = box->negate != 0;
    p->clear = box->clear != 0;
    for (d = 0; d < n; d++) {
        p->to_step[d] = dim[d].to;
        p->from_step[d] = dim[d].from;
        p->extent[d] = (uint32_t)dim[d].extent;
        if (d + 1 < n) {
            if (dim[d].extent >= DPARI_CUDA_UNITS || inner * dim[d].extent > DPARI_CUDA_UNITS) {
                return -1; /* only the last dim can be cut here, so the caller has to cut this
                              box */
            }
            inner *= dim[d].extent;
            dpari_cuda_magic((uint32_t)dim[d].extent, &p->magic[d], &p->shift[d]);
        }
    }
    cut->extent = dim[n - 1].extent;
    cut->each = DPARI_CUDA_UNITS / inner;
    cut->pieces = (cut->extent + cut->each - 1) / cut->each;
    return 1;
}

/* Sets *p to piece i of the box. */
DPARI_INTERNAL void dpari_cuda_piece(const dpari_cuda_cut *cut, int64_t i, dpari_cuda_box *p)
{
    const int32_t last = cut->piece.dims - 1;
    const int64_t lo = i * cut->each;
    const int64_t n = cut->extent - lo < cut->each ? cut->extent - lo : cut->each;
    int64_t units = n;
    int32_t d;
    *p = cut->piece;
    for (d = 0; d < last; d++) {
        units *= (int64_t)p->extent[d];
    }
    p->to += lo * p->to_step[last];
    p->from += lo * p->from_step[last];
    p->extent[last] = (uint32_t)n;
    p->units = (uint32_t)units;
}

static int dpari_cuda_sixteen(int32_t type)
{
    return type == DPAR_BF16 || type == DPAR_F16;
}

/* True if a box may convert between the two types. */
static int dpari_cuda_meets(int32_t a, int32_t b)
{
    return a == b || (a == DPAR_F32 && (b == DPAR_F64 || dpari_cuda_sixteen(b))) ||
           (b == DPAR_F32 && (a == DPAR_F64 || dpari_cuda_sixteen(a)));
}

/* True if dpar_mem allows the box. */
DPARI_INTERNAL int dpari_cuda_box_fine(const dpar_mem_box *b)
{
    const int32_t through = dpari_cuda_through(b);
    if (dpar_type_bytes(b->to_type) == 0 || dpar_type_bytes(b->from_type) == 0 || b->dims < 0 ||
        b->dims > DPAR_MEM_DIMS || !dpari_cuda_meets(b->to_type, b->from_type) ||
        !dpari_cuda_meets(b->from_type, through) || !dpari_cuda_meets(through, b->to_type) ||
        (b->op != DPAR_COPY && b->op != DPAR_SUM && b->op != DPAR_MAX && b->op != DPAR_MIN) ||
        ((b->op != DPAR_COPY || b->negate) && !dpari_cuda_can_reduce(b->to_type))) {
        return 0;
    }
    return dpari_cuda_box_empty(b) || (b->to != NULL && b->from != NULL);
}
