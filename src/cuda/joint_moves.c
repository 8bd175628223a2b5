/* SPDX-License-Identifier: MIT-0 */
/* Moves boxes that meet in one launch.
 *
 * Each cell of a frame (box_frames.c), joined with its neighbours as long as they are in the same
 * boxes, is a piece. The arguments of a launch list the pieces and the boxes from which each gets
 * values, in the order of the boxes. A thread reads its elements, adds the values of these boxes in
 * that order, and writes them once, so that the result has the same bits as moving the boxes one
 * after the other. */
#include "joint_moves.h"

#include "box_prepare.h"

/* A box from which threads add values to a piece. */
template <int DIMS> struct dpari_cuda_giver {
    unsigned char *from; /* the address that corresponds to index 0 of the frame */
    int64_t step[DIMS];
    uint8_t from_type, through, op, negate, clear, room[3];
};

template <int DIMS> struct dpari_cuda_taker {
    unsigned char *to;
    uint32_t lo[DIMS], extent[DIMS], magic[DIMS];
    uint32_t units;
    uint16_t list, boxes; /* where its boxes begin in the list, and how many there are */
    uint8_t shift[DIMS];
    uint8_t frame, to_type;
    uint8_t near[DPARI_CUDA_NEAR]; /* a copy of the first boxes */
};

/* The arguments of a launch of joint boxes. BOXES is the most boxes of a piece, which may be in all
 * that are analysed together. */
template <int DIMS_, int PIECES, int BOXES, int LIST, int FRAMES> struct dpari_cuda_joint {
    enum { DIMS = DIMS_, ROOM = PIECES, GIVERS = BOXES, LISTS = LIST, ARRAYS = FRAMES };
    int32_t n, givers, list, frames;
    int64_t first[PIECES + 1]; /* chunks */
    int64_t step[FRAMES][DIMS_];
    dpari_cuda_taker<DIMS_> piece[PIECES];
    dpari_cuda_giver<DIMS_> giver[BOXES];
    uint16_t of[LIST];
};
typedef dpari_cuda_joint<DPARI_CUDA_SLIM, 26, 26, 104, 2> dpari_cuda_joint_small;
typedef dpari_cuda_joint<DPARI_CUDA_SLIM, 216, DPARI_CUDA_WINDOW, 1000, 16> dpari_cuda_joint_large;
typedef dpari_cuda_joint<DPAR_MEM_DIMS, 96, DPARI_CUDA_WINDOW, 700, 16> dpari_cuda_joint_wide;
static_assert(sizeof(dpari_cuda_joint_small) <= 4096 &&
                  sizeof(dpari_cuda_joint_large) <= DPARI_CUDA_ARGUMENTS &&
                  sizeof(dpari_cuda_joint_wide) <= DPARI_CUDA_ARGUMENTS,
              "a launch");

/* Reads the values that giver g adds to PER elements, which have index `at` in the frame. */
template <int PER, int DIMS>
__device__ static inline void dpari_cuda_joint_read(const dpari_cuda_giver<DIMS> &g,
                                                    const uint32_t (*at)[DIMS], const int *in,
                                                    unsigned char **from, uint64_t *y)
{
    const int32_t wide = dpari_cuda_width(g.from_type);
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        from[j] = g.from;
        DPARI_CUDA_UNROLL
        for (int d = 0; d < DIMS; d++) {
            from[j] += (int64_t)at[j][d] * g.step[d];
        }
        y[j] = in[j] ? dpari_cuda_read(from[j], wide) : 0;
    }
}

/* Adds these values to x. */
template <int PER, int DIMS>
__device__ static inline void
dpari_cuda_joint_meet(const dpari_cuda_giver<DIMS> &g, int32_t to_type, const int *in,
                      unsigned char *const *from, const uint64_t *y, uint64_t *x)
{
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        uint64_t v = dpari_cuda_convert(y[j], g.from_type, g.through);
        v = dpari_cuda_convert(v, g.through, to_type);
        v = g.negate ? dpari_cuda_negate(v, to_type) : v;
        x[j] = g.op == DPAR_COPY ? v : dpari_cuda_meet_bits(x[j], v, to_type, g.op);
        if (in[j] && g.clear) {
            dpari_cuda_write(from[j], dpari_cuda_width(g.from_type), 0);
        }
    }
}

/* Processes PER elements of piece k. With one element the values of the first boxes are loaded
 * together. With more elements, boxes are loaded one after the other, since each has several
 * loads. */
template <int PER, typename Joint>
__device__ static inline void dpari_cuda_joint_some(const Joint &b, int32_t k, uint32_t i)
{
    enum { DIMS = Joint::DIMS, NEAR = PER == 1 ? (int)DPARI_CUDA_NEAR : 1 };
    const auto &p = b.piece[k];
    const int32_t width = dpari_cuda_width(p.to_type);
    uint32_t at[PER][DIMS];
    unsigned char *to[PER], *from[NEAR][PER];
    uint64_t x[PER], y[NEAR][PER];
    int in[PER];
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        uint32_t u = i + (uint32_t)j * DPARI_CUDA_THREADS;
        in[j] = u < p.units;
        to[j] = p.to;
        x[j] = 0;
        DPARI_CUDA_UNROLL
        for (int d = 0; d < DIMS; d++) {
            const uint32_t q = dpari_cuda_over(u, p.magic[d], p.shift[d]);
            const uint32_t r = u - q * p.extent[d];
            to[j] += (int64_t)r * b.step[p.frame][d];
            at[j][d] = p.lo[d] + r;
            u = q;
        }
        if (in[j]) {
            x[j] = dpari_cuda_read(to[j], width);
        }
    }
    DPARI_CUDA_UNROLL
    for (int m = 0; m < NEAR; m++) {
        if (m < p.boxes) {
            dpari_cuda_joint_read<PER>(b.giver[p.near[m]], at, in, from[m], y[m]);
        }
    }
    DPARI_CUDA_UNROLL
    for (int m = 0; m < NEAR; m++) {
        if (m < p.boxes) {
            dpari_cuda_joint_meet<PER>(b.giver[p.near[m]], p.to_type, in, from[m], y[m], x);
        }
    }
    for (int32_t m = NEAR; m < p.boxes; m++) {
        const auto &g = b.giver[b.of[p.list + m]];
        dpari_cuda_joint_read<PER>(g, at, in, from[0], y[0]);
        dpari_cuda_joint_meet<PER>(g, p.to_type, in, from[0], y[0], x);
    }
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        if (in[j]) {
            dpari_cuda_write(to[j], width, x[j]);
        }
    }
}

template <typename Joint, int PER>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, 3)
    dpari_cuda_joint_kernel(DPARI_CUDA_ARGS Joint b)
{
    int64_t c = blockIdx.x; /* there are no more blocks than chunks */
    do {
        const int32_t k = dpari_cuda_find(b, c);
        const uint32_t chunk = (uint32_t)(c - b.first[k]) * (PER * DPARI_CUDA_THREADS);
        dpari_cuda_joint_some<PER>(b, k, chunk + threadIdx.x);
        c += gridDim.x;
    } while (c < b.first[b.n]);
}

/* Collects pieces for launches. */
template <typename Joint> struct dpari_cuda_joining {
    dpar_cuda *gpu;
    const dpari_cuda_scene *scene;
    const dpari_cuda_frame *frame;
    dpari_cuda_cells cells;
    Joint b;
    int32_t room, givers, lists, arrays; /* the most of each that a launch may have */
    int16_t giver[DPARI_CUDA_WINDOW];    /* the number of each box among the givers of `b`, or -1 */
    int32_t frame_at;                    /* the same for the frame */
    int64_t lo[DPAR_MEM_DIMS], hi[DPAR_MEM_DIMS];
};

template <int PER, typename Joint> static dpar_status dpari_cuda_joint_by(dpar_cuda *gpu, Joint *b)
{
    b->first[b->n] = dpari_cuda_chunks(b->piece, b->n, PER * DPARI_CUDA_THREADS, b->first);
    return dpari_cuda_move_launch(gpu, dpari_cuda_joint_kernel<Joint, PER>, *b,
                                  dpari_cuda_each(gpu, b->first[b->n]));
}

/* Launches the collected pieces. For a few boxes, it chooses how many elements a thread has by the
 * amount of work. Many boxes are always much work, and boxes of many dims are rare. */
template <typename Joint> static dpar_status dpari_cuda_joint_now(dpar_cuda *gpu, Joint *b)
{
    if constexpr ((int)Joint::ROOM > (int)dpari_cuda_joint_small::ROOM) {
        return dpari_cuda_joint_by < (int)Joint::DIMS == (int)DPARI_CUDA_SLIM ? 2 : 1 > (gpu, b);
    } else {
        return dpari_cuda_little(gpu, b) ? dpari_cuda_joint_by<1>(gpu, b)
                                         : dpari_cuda_joint_by<2>(gpu, b);
    }
}

template <typename To, typename Joint> static void dpari_cuda_joint_shrink(To *to, const Joint *b)
{
    dpari_cuda_shrink(to, b);
    memcpy(to->step, b->step, (size_t)b->frames * sizeof b->step[0]);
    memcpy(to->giver, b->giver, (size_t)b->givers * sizeof b->giver[0]);
    memcpy(to->of, b->of, (size_t)b->list * sizeof b->of[0]);
}

template <typename Joint> static dpar_status dpari_cuda_joint_flush(dpari_cuda_joining<Joint> *j)
{
    typedef dpari_cuda_joint_small Small;
    Joint *b = &j->b;
    dpar_status st = DPAR_OK;
    if constexpr ((int)Joint::DIMS == (int)Small::DIMS) {
        if (b->n > 0 && b->n <= (int32_t)Small::ROOM && b->givers <= (int32_t)Small::GIVERS &&
            b->list <= (int32_t)Small::LISTS && b->frames <= (int32_t)Small::ARRAYS) {
            Small s;
            dpari_cuda_joint_shrink(&s, b);
            st = dpari_cuda_joint_now(j->gpu, &s);
            b->n = 0;
        }
    }
    st = b->n > 0 ? dpari_cuda_joint_now(j->gpu, b) : st;
    b->n = b->givers = b->list = b->frames = 0;
    memset(j->giver, -1, sizeof j->giver);
    j->frame_at = -1;
    return st;
}

/* Adds box k as a giver, with the address in its `from` that corresponds to index 0 of the
 * frame. */
template <typename Joint>
static int16_t dpari_cuda_joint_giver(dpari_cuda_joining<Joint> *j, int32_t k)
{
    const dpar_mem_box *box = &j->scene->box[k];
    const dpari_cuda_side *side = &j->scene->side[2 * k];
    const int64_t width = dpari_cuda_width(box->to_type), wide = dpari_cuda_width(box->from_type);
    unsigned char *from = (unsigned char *)box->from;
    int32_t d, e;
    if (j->giver[k] >= 0) {
        return j->giver[k];
    }
    auto &g = j->b.giver[j->b.givers];
    memset(&g, 0, sizeof g);
    for (d = 0; d < box->dims; d++) {
        const int64_t to_step = box->to_stride[d] * width, step = box->from_stride[d] * wide;
        for (e = 0; e < j->frame->dims && box->extent[d] > 1; e++) {
            if (j->frame->step[e] == to_step || j->frame->step[e] == -to_step) {
                g.step[e] = to_step > 0 ? step : -step;
                from += to_step > 0 ? 0 : (box->extent[d] - 1) * step;
            }
        }
    }
    for (e = 0; e < j->frame->dims; e++) {
        from = (unsigned char *)((uintptr_t)from - (uintptr_t)(side->lo[e] * g.step[e]));
    }
    g.from = from;
    g.from_type = (uint8_t)box->from_type;
    g.through = (uint8_t)dpari_cuda_through(box);
    g.op = (uint8_t)box->op;
    g.negate = box->negate != 0;
    g.clear = box->clear != 0;
    j->giver[k] = (int16_t)j->b.givers++;
    return j->giver[k];
}

/* Adds the piece from j->lo to j->hi, whose elements are in the boxes `in`. */
template <typename Joint>
static dpar_status dpari_cuda_joint_add(dpari_cuda_joining<Joint> *j, const uint64_t *in)
{
    const dpari_cuda_frame *f = j->frame;
    int64_t units = 1;
    int32_t i, d, boxes = 0;
    dpar_status st = DPAR_OK;
    for (i = 0; i < j->cells.n; i++) {
        boxes += (int32_t)(in[i / 64] >> (i % 64) & 1);
    }
    if (j->b.n == j->room || j->b.givers + boxes > j->givers || j->b.list + boxes > j->lists ||
        (j->frame_at < 0 && j->b.frames == j->arrays)) {
        st = dpari_cuda_joint_flush(j);
    }
    if (j->frame_at < 0) {
        j->frame_at = j->b.frames++;
        memset(j->b.step[j->frame_at], 0, sizeof j->b.step[0]);
        memcpy(j->b.step[j->frame_at], f->step, (size_t)f->dims * sizeof f->step[0]);
    }
    auto &p = j->b.piece[j->b.n++];
    memset(&p, 0, sizeof p);
    p.to = (unsigned char *)f->base;
    for (d = 0; d < (int32_t)Joint::DIMS; d++) {
        const int64_t n = d < f->dims ? j->hi[d] - j->lo[d] : 1;
        p.lo[d] = (uint32_t)(d < f->dims ? j->lo[d] : 0);
        p.extent[d] = (uint32_t)n;
        p.to += d < f->dims ? j->lo[d] * f->step[d] : 0;
        dpari_cuda_magic((uint32_t)n, &p.magic[d], &p.shift[d]);
        units *= n;
    }
    p.units = (uint32_t)units;
    p.frame = (uint8_t)j->frame_at;
    p.list = (uint16_t)j->b.list;
    p.boxes = (uint16_t)boxes;
    for (i = 0; i < j->cells.n; i++) {
        if (in[i / 64] >> (i % 64) & 1) {
            const uint16_t giver = (uint16_t)dpari_cuda_joint_giver(j, j->cells.to[i]);
            const int32_t m = j->b.list - (int32_t)p.list;
            p.to_type = (uint8_t)j->scene->box[j->cells.to[i]].to_type;
            if (m < (int32_t)DPARI_CUDA_NEAR) {
                p.near[m] = (uint8_t)giver;
            }
            j->b.of[j->b.list++] = giver;
        }
    }
    return st;
}

/* Visits all cells within the boxes `in`, from dim d down to 0. */
template <typename Joint>
static dpar_status dpari_cuda_joint_cells(dpari_cuda_joining<Joint> *j, int32_t d,
                                          const uint64_t *in)
{
    const dpari_cuda_cells *c = &j->cells;
    dpar_status st = DPAR_OK;
    int32_t i = 0, k, w;
    while (i + 1 < c->cuts[d] && st == DPAR_OK) {
        uint64_t both[DPARI_CUDA_WORDS], any = 0, differ = 0;
        for (w = 0; w < DPARI_CUDA_WORDS; w++) {
            both[w] = in[w] & c->in[d][i][w];
            any |= both[w];
        }
        for (k = i + 1; k + 1 < c->cuts[d] && differ == 0; k += differ == 0) {
            for (w = 0; w < DPARI_CUDA_WORDS; w++) {
                differ |= both[w] ^ (in[w] & c->in[d][k][w]);
            }
        }
        j->lo[d] = c->cut[d][i];
        j->hi[d] = c->cut[d][k];
        i = k;
        if (any != 0) {
            st = d > 0 ? dpari_cuda_joint_cells(j, d - 1, both) : dpari_cuda_joint_add(j, both);
        }
    }
    return st;
}

template <typename Joint>
static dpar_status dpari_cuda_joint_by_form(dpar_cuda *gpu, const dpari_cuda_scene *z)
{
    dpari_cuda_joining<Joint> j;
    uint64_t all[DPARI_CUDA_WORDS];
    dpar_status st = DPAR_OK;
    int32_t f;
    typedef dpari_cuda_joint_small Small;
    const int small = gpu->arguments < DPARI_CUDA_ARGUMENTS;
    j.gpu = gpu;
    j.scene = z;
    j.room = small ? (int32_t)Small::ROOM : (int32_t)Joint::ROOM;
    j.givers = small ? (int32_t)Small::GIVERS : (int32_t)Joint::GIVERS;
    j.lists = small ? (int32_t)Small::LISTS : (int32_t)Joint::LISTS;
    j.arrays = small ? (int32_t)Small::ARRAYS : (int32_t)Joint::ARRAYS;
    j.b.n = 0;
    memset(all, -1, sizeof all);
    (void)dpari_cuda_joint_flush(&j);
    for (f = 0; f < z->frames && st == DPAR_OK; f++) {
        j.frame = &z->frame[f];
        j.frame_at = -1;
        (void)dpari_cuda_cells_of(z, j.frame, &j.cells);
        st = dpari_cuda_joint_cells(&j, j.frame->dims - 1, all);
    }
    return st == DPAR_OK ? dpari_cuda_joint_flush(&j) : st;
}

DPARI_INTERNAL int dpari_cuda_joint_fits(const dpar_cuda *gpu, const dpari_cuda_scene *z)
{
    return gpu->arguments >= DPARI_CUDA_ARGUMENTS ||
           (z->n <= dpari_cuda_joint_small::GIVERS && z->dims <= DPARI_CUDA_SLIM);
}

DPARI_INTERNAL dpar_status dpari_cuda_move_joint(dpar_cuda *gpu, const dpari_cuda_scene *z)
{
    return z->dims <= (int32_t)DPARI_CUDA_SLIM
               ? dpari_cuda_joint_by_form<dpari_cuda_joint_large>(gpu, z)
               : dpari_cuda_joint_by_form<dpari_cuda_joint_wide>(gpu, z);
}
