/* SPDX-License-Identifier: MIT-0 */
/* Tests random grids, fields and methods of exchange over real ranks, and looks at every cell of
 * every array afterwards: own cells and cells without an image are unchanged, the others hold the
 * value of a formula of the global index. Adjoint: compares every own cell with a sum over all halo
 * cells of all ranks that show it, of small whole numbers, exact in any order. All methods give the
 * same bits.
 *   halo_exchange [ranks] [rounds] [seed] [processes|threads]    without arguments: 1 to 8 ranks
 *   mpirun -np 4 halo_exchange    built with -DUSE_MPI */
#include "dpar_debug.h"
#include "halo_plans.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "axes.h"
#include "bf16.h"
#include "points.h"

enum { FIELDS = 4, CELLS = 1 << 15, POISON = -77 };

/* ---- random numbers, the same on all ranks ---- */

typedef struct rng {
    uint32_t state;
} rng;

static int below(rng *r, int n)
{
    r->state = r->state * 1664525u + 1013904223u;
    return (int)((r->state >> 8) % (uint32_t)n);
}

/* ---- a case ---- */

typedef struct one_field {
    dpar_halo halo;
    dpar_halo_field f;
    dpar_box own, box;
    int has, pad, fortran, owner_memory, compact, rank;
    int64_t bytes;
    unsigned char *memory, *before;
} one_field;

typedef struct one_case {
    int32_t dims, parts[DPAR_MAX_DIMS];
    int64_t extent[DPAR_MAX_DIMS];
    int64_t cuts[DPAR_MAX_DIMS][16];
    dpar_mesh mesh;
    dpar_layout grid;
    int32_t fields;
    one_field field[FIELDS];
    dpar_halo_plan_desc options;
} one_case;

static int wrong;

static void say(const char *what, const dpar_why *why, int rank)
{
    if (wrong++ < 5) {
        printf("WRONG rank %d: %s: %s\n", rank, what, why ? why->text : "");
        fflush(stdout);
    }
}

/* Returns a small whole number for component k of point p of field f. */
static double value(const one_field *f, int field, const int64_t *p, int k)
{
    uint32_t h = (uint32_t)(field * 31 + k * 7 + 3);
    for (int32_t d = 0; d < f->halo.grid.dims; d++) {
        h = h * 2654435761u + (uint32_t)p[d] * 40503u + (uint32_t)d;
        h ^= h >> 15;
    }
    return (double)(h % 61u) + 2.0; /* -1 is the poison of integers */
}

static double get(int32_t type, const unsigned char *at)
{
    double d;
    float s;
    int32_t i;
    int64_t l;
    uint16_t h;
    switch (type) {
    case DPAR_F64: memcpy(&d, at, 8); return d;
    case DPAR_F32: memcpy(&s, at, 4); return (double)s;
    case DPAR_I32: memcpy(&i, at, 4); return (double)i;
    case DPAR_I64: memcpy(&l, at, 8); return (double)l;
    case DPAR_BF16: memcpy(&h, at, 2); return (double)bf16_value(h);
    default: return (double)(signed char)*at;
    }
}

static void set(int32_t type, unsigned char *at, double v)
{
    float s = (float)v;
    int32_t i = (int32_t)v;
    int64_t l = (int64_t)v;
    uint16_t h;
    switch (type) {
    case DPAR_F64: memcpy(at, &v, 8); break;
    case DPAR_F32: memcpy(at, &s, 4); break;
    case DPAR_I32: memcpy(at, &i, 4); break;
    case DPAR_I64: memcpy(at, &l, 8); break;
    case DPAR_BF16:
        h = bf16_of(s);
        memcpy(at, &h, 2);
        break;
    default: *at = (unsigned char)(signed char)v;
    }
}

/* Makes the grid and the fields, without memory. */
static void make_case(one_case *c, rng *r, int ranks)
{
    static const int32_t types[] = {DPAR_F64, DPAR_F64,  DPAR_F32, DPAR_I32,
                                    DPAR_I64, DPAR_BF16, DPAR_I8};
    dpar_placement place[3];
    int left = ranks;
    memset(c, 0, sizeof *c);
    c->dims = 1 + below(r, 3);
    for (int32_t d = 0; d < c->dims; d++) {
        int p = 1;
        for (int q = left; q > 1 && d < c->dims - 1; q--) {
            if (left % q == 0 && below(r, 2)) {
                p = q;
                break;
            }
        }
        c->parts[d] = d == c->dims - 1 ? left : p;
        left /= c->parts[d];
    }
    for (int32_t d = 0; d < c->dims; d++) {
        const int rule = below(r, 3);
        c->extent[d] = 1 + below(r, c->dims == 1 ? 24 : 9) + (rule ? c->parts[d] : 0);
        place[d] = dpar_shard_by(d, rule == 2 ? DPAR_SPLIT_EVEN : DPAR_SPLIT_CHUNK, 0);
        if (rule == 1) {
            c->cuts[d][0] = 0;
            for (int i = 1; i < c->parts[d]; i++) {
                int64_t most = c->extent[d] - c->cuts[d][i - 1];
                c->cuts[d][i] = c->cuts[d][i - 1] + below(r, (int)(most < 6 ? most + 1 : 6));
            }
            c->cuts[d][c->parts[d]] = c->extent[d];
            place[d] = dpar_shard_by(d, DPAR_SPLIT_RAGGED, 0);
            place[d].cuts = c->cuts[d];
        }
    }
    dpar_mesh_init(&c->mesh, axis_names(c->dims), c->parts, DPAR_ORDER_LAST_FASTEST, ranks, NULL);
    dpar_layout_init(&c->grid, &c->mesh, c->dims, c->extent, place, NULL);
    c->fields = 1 + below(r, FIELDS);
    const uint32_t periodic = (uint32_t)below(r, 1 << c->dims);
    const int folds = c->dims > 1 && below(r, 4) == 0;
    for (int i = 0; i < c->fields; i++) {
        one_field *o = &c->field[i];
        dpar_halo *h = &o->halo;
        h->grid = c->grid;
        h->shape = below(r, 3); /* STAR, BOX, EDGES */
        h->periodic = periodic;
        if (folds && c->extent[c->dims - 1] % 2 == 0) {
            h->folds = 1;
            h->fold = c->dims - 2;
            h->mirror = c->dims - 1;
            h->periodic = (periodic | 1u << h->mirror) & ~(1u << h->fold);
            h->on_row = below(r, 2);
            h->shift = -below(r, 2);
        }
        for (int32_t d = 0; d < c->dims; d++) {
            h->low[d] = below(r, 4);
            h->high[d] = below(r, 4);
            h->points[d] = h->folds ? DPAR_HALO_AT_CELLS : below(r, 3);
        }
        if (h->folds && h->high[h->fold] > c->extent[h->fold] - h->on_row) {
            h->high[h->fold] = c->extent[h->fold] - h->on_row;
        }
        o->f.type = types[below(r, 7)];
        o->f.vector = below(r, 2);
        o->f.wire_type = o->f.type == DPAR_F64 ? DPAR_F32 : DPAR_BF16;
        if (below(r, 4) != 0 || (o->f.type != DPAR_F64 && o->f.type != DPAR_F32)) {
            o->f.wire_type = below(r, 2) ? o->f.type : DPAR_TYPE_NONE;
        }
        o->f.components = below(r, 3);
        o->pad = below(r, 2) ? below(r, 3) : 0;
        o->fortran = below(r, 3) == 0;
        o->owner_memory = below(r, 4) == 0;
        o->compact = below(r, 4) == 0;
    }
}

/* Makes this rank's arrays with the strides of the case, everything poisoned. */
static int make_memory(one_case *c, dpar_comm *comm)
{
    for (int i = 0; i < c->fields; i++) {
        one_field *o = &c->field[i];
        const int32_t dims = c->dims, width = dpar_type_bytes(o->f.type);
        const int32_t k = o->f.components > 0 ? o->f.components : 1;
        int64_t step = k, halo = 0;
        const int compact = o->compact;
        o->rank = comm->rank;
        o->f.halo = &o->halo;
        o->has = dpar_halo_owned(&o->halo, comm->rank, &o->own);
        if (o->has) {
            dpar_halo_box(&o->halo, comm->rank, &o->box);
        }
        memset(o->f.stride, 0, sizeof o->f.stride);
        for (int32_t j = 0; j < dims && o->has; j++) {
            const int32_t d = o->fortran ? j : dims - 1 - j;
            o->f.first[d] = compact ? o->pad : o->own.lo[d] - o->box.lo[d] + o->pad;
            o->f.stride[d] = step;
            step *=
                (compact ? o->own.hi[d] - o->own.lo[d] : o->box.hi[d] - o->box.lo[d]) + 2 * o->pad;
        }
        if (o->has && o->fortran && k > 1) { /* components outermost */
            for (int32_t d = 0; d < dims; d++) {
                o->f.stride[d] /= k;
            }
            o->f.component_stride = step / k;
        }
        halo = compact && o->has ? dpar_halo_slab_points(&o->halo, comm->rank) * k : 0;
        o->bytes = o->has ? (step + halo) * width : 0;
        o->f.data = NULL;
        o->f.compact_halo = NULL;
        if (o->has) {
            void *at = NULL;
            if (o->owner_memory) {
                at = malloc((size_t)o->bytes);
            } else if (dpar_comm_alloc(comm, o->bytes, &at) != DPAR_OK) {
                return 0;
            }
            o->memory = (unsigned char *)at;
            o->before = (unsigned char *)malloc((size_t)o->bytes);
            o->f.data = at;
            if (compact) {
                o->f.compact_halo = o->memory + step * width;
            }
        }
        if (!o->fortran && !o->pad) { /* the default strides */
            memset(o->f.stride, 0, sizeof o->f.stride);
            memset(o->f.first, 0, sizeof o->f.first);
        }
    }
    return 1;
}

static void free_memory(one_case *c, dpar_comm *comm)
{
    for (int i = 0; i < c->fields; i++) {
        one_field *o = &c->field[i];
        if (o->memory && o->owner_memory) {
            free(o->memory);
        } else if (o->memory) {
            dpar_comm_release(comm, o->memory);
        }
        free(o->before);
        o->memory = o->before = NULL;
    }
}

/* Returns the address of component k of global point p in this rank's array, computed here; NULL if
 * it has none (a corner of a star in the compact form). */
static unsigned char *cell(const one_field *o, const int64_t *p, int k)
{
    const int32_t dims = o->halo.grid.dims, comps = o->f.components > 0 ? o->f.components : 1;
    const int32_t width = dpar_type_bytes(o->f.type);
    int64_t at = 0, step = comps;
    int own = 1, plain = !o->fortran && !o->pad;
    dpar_box b;
    for (int32_t d = 0; d < dims; d++) {
        own = own && p[d] >= o->own.lo[d] && p[d] < o->own.hi[d];
    }
    if (o->compact && !own) {
        for (int32_t n = 0; dpar_halo_slab(&o->halo, o->rank, n, &b); n++) {
            int inside = 1;
            int64_t in = 0, all = 1;
            for (int32_t d = 0; d < dims; d++) {
                inside = inside && p[d] >= b.lo[d] && p[d] < b.hi[d];
                in = in * (b.hi[d] - b.lo[d]) + p[d] - b.lo[d];
                all *= b.hi[d] - b.lo[d];
            }
            if (inside) {
                return (unsigned char *)o->f.compact_halo + ((at + in) * comps + k) * width;
            }
            at += all;
        }
        return NULL;
    }
    for (int32_t d = dims - 1; d >= 0 && plain; d--) {
        at += (p[d] - (o->compact ? o->own.lo[d] : o->box.lo[d])) * step;
        step *= o->compact ? o->own.hi[d] - o->own.lo[d] : o->box.hi[d] - o->box.lo[d];
    }
    for (int32_t d = 0; d < dims && !plain; d++) {
        at += (p[d] - o->own.lo[d] + o->f.first[d]) * o->f.stride[d];
    }
    return o->memory + (at + k * (o->f.component_stride ? o->f.component_stride : 1)) * width;
}

static void first_point(const dpar_box *b, int64_t *p)
{
    for (int32_t d = 0; d < b->dims; d++) {
        p[d] = b->lo[d];
    }
}

/* Finds the image of point p of the local box by the rules of halo.h. Returns 0 if there is none.
 * *sign is -1 over a fold. */
static int image(const one_field *o, const int64_t *p, int64_t *q, int *sign)
{
    const dpar_halo *h = &o->halo;
    int outside = 0, over = 0, seam = 0;
    *sign = 1;
    for (int32_t d = 0; d < h->grid.dims; d++) {
        const int64_t n = dpar_halo_points(h, d);
        outside += p[d] < o->own.lo[d] || p[d] >= o->own.hi[d];
        q[d] = p[d];
        if (h->periodic >> d & 1u) {
            q[d] = ((p[d] % n) + n) % n;
        } else if (h->folds && d == h->fold && p[d] >= n) {
            over = 1;
        } else if (p[d] < 0 || p[d] >= n) {
            return 0;
        }
        seam = seam || (h->folds && h->on_row && d == h->fold && p[d] == n - 1);
    }
    if ((outside > 1 && h->shape == DPAR_STENCIL_STAR) ||
        (outside > 2 && h->shape == DPAR_STENCIL_EDGES)) {
        return 0;
    }
    if (over || seam) {
        const int64_t columns = dpar_halo_points(h, h->mirror), rows = dpar_halo_points(h, h->fold);
        const int64_t i = q[h->mirror];
        const int64_t to = ((columns - 1 + h->shift - i) % columns + columns) % columns;
        if (over || to < i) { /* the later one of a pair on the fold shows the first */
            q[h->fold] = 2 * (rows - 1) + 1 - h->on_row - p[h->fold];
            q[h->mirror] = to;
            *sign = o->f.vector ? -1 : 1;
            return 1;
        }
    }
    return outside > 0;
}

/* Fills own cells by the formula, all others with POISON. */
static void fill(one_case *c)
{
    for (int i = 0; i < c->fields; i++) {
        one_field *o = &c->field[i];
        int64_t p[DPAR_MAX_DIMS];
        const int32_t width = dpar_type_bytes(o->f.type);
        if (!o->has) {
            continue;
        }
        for (int64_t b = 0; b < o->bytes; b += width) {
            set(o->f.type, o->memory + b, POISON);
        }
        first_point(&o->own, p);
        do {
            for (int k = 0; k < (o->f.components > 0 ? o->f.components : 1); k++) {
                set(o->f.type, cell(o, p, k), value(o, i, p, k));
            }
        } while (next_point(&o->own, p));
        memcpy(o->before, o->memory, (size_t)o->bytes);
    }
}

/* Puts the expected result of a forward exchange into `before` and compares all bytes. */
static void check_forward(one_case *c, dpar_comm *comm, const char *what)
{
    for (int i = 0; i < c->fields; i++) {
        one_field *o = &c->field[i];
        int64_t p[DPAR_MAX_DIMS], q[DPAR_MAX_DIMS];
        int sign;
        if (!o->has) {
            continue;
        }
        first_point(&o->box, p);
        do {
            for (int k = 0; k < (o->f.components > 0 ? o->f.components : 1); k++) {
                unsigned char *at = cell(o, p, k);
                if (image(o, p, q, &sign) && at) {
                    set(o->f.type, o->before + (at - o->memory), sign * value(o, i, q, k));
                }
            }
        } while (next_point(&o->box, p));
        if (memcmp(o->before, o->memory, (size_t)o->bytes) != 0) {
            dpar_why why;
            int64_t b = 0;
            while (o->before[b] == o->memory[b]) {
                b++;
            }
            b -= b % dpar_type_bytes(o->f.type);
            snprintf(why.text, sizeof why.text, "field %d %s byte %d: %g, expected %g", i,
                     dpar_type_name(o->f.type), (int)b, get(o->f.type, o->memory + b),
                     get(o->f.type, o->before + b));
            say(what, &why, comm->rank);
        }
    }
}

/* ---- the adjoint ---- */

static int part_of(const one_field *o, const int64_t *p)
{
    for (int32_t d = 0; d < o->halo.grid.dims; d++) {
        if (p[d] < o->own.lo[d] || p[d] >= o->own.hi[d]) {
            return 0;
        }
    }
    return 1;
}

/* Returns what a rank has at point p of its local box before the adjoint. */
static double before_adjoint(const one_field *o, int field, int rank, const int64_t *p, int k)
{
    int64_t q[DPAR_MAX_DIMS];
    for (int32_t d = 0; d < o->halo.grid.dims; d++) {
        q[d] = p[d] + (part_of(o, p) ? 0 : 1000 * (rank + 1));
    }
    return fmod(value(o, field, q, k), 3.0) + 1.0;
}

static void fill_adjoint(one_case *c)
{
    for (int i = 0; i < c->fields; i++) {
        one_field *o = &c->field[i];
        int64_t p[DPAR_MAX_DIMS];
        const int32_t width = dpar_type_bytes(o->f.type);
        if (!o->has) {
            continue;
        }
        for (int64_t b = 0; b < o->bytes; b += width) {
            set(o->f.type, o->memory + b, POISON);
        }
        first_point(&o->box, p);
        do {
            for (int k = 0; k < (o->f.components > 0 ? o->f.components : 1); k++) {
                unsigned char *at = cell(o, p, k);
                if (at) {
                    set(o->f.type, at, before_adjoint(o, i, o->rank, p, k));
                }
            }
        } while (next_point(&o->box, p));
        memcpy(o->before, o->memory, (size_t)o->bytes);
    }
}

static double combined(double a, double b, int32_t op)
{
    return op == DPAR_SUM ? a + b : op == DPAR_MAX ? (a > b ? a : b) : (a < b ? a : b);
}

/* Adds what all cells of all ranks give to this rank's cells to `before`. */
static void check_adjoint(one_case *c, int ranks, int32_t op, const char *what)
{
    for (int i = 0; i < c->fields; i++) {
        one_field *o = &c->field[i];
        one_field other = *o;
        int64_t p[DPAR_MAX_DIMS], q[DPAR_MAX_DIMS];
        int sign;
        if (!o->has) {
            continue;
        }
        for (int r = 0; r < ranks; r++) {
            if (!dpar_halo_owned(&o->halo, r, &other.own)) {
                continue;
            }
            dpar_halo_box(&o->halo, r, &other.box);
            first_point(&other.box, p);
            do {
                if (!image(&other, p, q, &sign) || !part_of(o, q)) {
                    continue;
                }
                for (int k = 0; k < (o->f.components > 0 ? o->f.components : 1); k++) {
                    unsigned char *at = o->before + (cell(o, q, k) - o->memory);
                    const double v = sign * before_adjoint(&other, i, r, p, k);
                    set(o->f.type, at, combined(get(o->f.type, at), v, op));
                }
            } while (next_point(&other.box, p));
        }
        first_point(&o->box, p);
        do {
            for (int k = 0; k < (o->f.components > 0 ? o->f.components : 1); k++) {
                unsigned char *at = cell(o, p, k);
                if (image(o, p, q, &sign) && at) {
                    set(o->f.type, o->before + (at - o->memory), 0);
                }
            }
        } while (next_point(&o->box, p));
        if (memcmp(o->before, o->memory, (size_t)o->bytes) != 0) {
            dpar_why why;
            int64_t b = 0;
            while (o->before[b] == o->memory[b]) {
                b++;
            }
            b -= b % dpar_type_bytes(o->f.type);
            snprintf(why.text, sizeof why.text, "field %d %s byte %d: %g, expected %g", i,
                     dpar_type_name(o->f.type), (int)b, get(o->f.type, o->memory + b),
                     get(o->f.type, o->before + b));
            say(what, &why, o->rank);
        }
    }
}

/* ---- runs ---- */

/* Returns 1 if the case cannot be exchanged dim by dim. */
static int only_direct(const one_case *c)
{
    for (int i = 0; i < c->fields; i++) {
        if (c->field[i].halo.folds || c->field[i].compact ||
            c->field[i].halo.shape == DPAR_STENCIL_EDGES) {
            return 1;
        }
    }
    return 0;
}

static int ended(dpar_halo_plan *x, int how)
{
    dpar_status st = DPAR_MORE;
    while (how && st == DPAR_MORE) { /* some by dpar_halo_plan_test */
        st = dpar_halo_plan_test(x);
    }
    st = st < 0 ? st : dpar_halo_plan_end(x);
    return st == DPAR_OK;
}

/* Returns 1 if the report agrees with the traffic, row by row, and gives the number of
 * exchanges. */
static int tells(dpar_halo_plan *x, int32_t rank, int timers)
{
    static const char *const ways[] = {"auto", "message", "packed", "direct"};
    char page[4096], way[12];
    dpari_hx_traffic t;
    dpar_text text;
    const char *at;
    dpar_text_init(&text, page, sizeof page);
    dpar_halo_plan_report(x, &text);
    at = strchr(page, '\n');
    for (int32_t k = 0; at && dpari_hx_traffic_of(x, k, &t); k++) {
        int peer, hops;
        long long pieces, bytes, direct, runs;
        at = strchr(at + 1, '\n');
        if (!at ||
            sscanf(at, "%d %11s %d %lld %lld %lld %lld", &peer, way, &hops, &pieces, &bytes,
                   &direct, &runs) != 7 ||
            peer != t.peer || strcmp(way, peer == rank ? "copy" : ways[t.way]) != 0 ||
            hops != t.hops || pieces != t.pieces || bytes != t.bytes || direct != t.direct ||
            runs != t.runs) {
            return 0;
        }
    }
    at = at ? strchr(at + 1, '\n') : NULL;
    return at && strncmp(at, "\n  0 exchanges", 14) == 0 &&
           (strstr(at, "0 exchanges, each: packing 0.00 us, copying 0.00 us, waiting 0.00 us\n") !=
            NULL) == timers;
}

/* Checks the report, poison (NaN before the exchange, none after), and compare: no wrong cell, then
 * one. */
static void looks(one_case *c, dpar_comm *comm, dpar_halo_plan *x, int timers, const char *what)
{
    dpari_hx_traffic t;
    dpar_why why;
    int64_t sum[2] = {0, 0}, all[2] = {0, 0};
    int filled = 0, any = 0;
    dpar_status st;
    memset(&why, 0, sizeof why);
    for (int32_t k = 0; dpari_hx_traffic_of(x, k, &t); k++) {
        if (t.hops < 0 || t.direct > t.bytes || (t.peer != comm->rank && t.hops < 1)) {
            say("traffic", NULL, comm->rank);
        }
    }
    if (!tells(x, comm->rank, timers)) {
        say("report", NULL, comm->rank);
    }
    fill(c);
    (void)dpar_halo_plan_check(x, DPAR_HALO_POISON, NULL);
    st = dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why);
    for (int i = 0; i < c->fields; i++) { /* whether any data arrive here */
        one_field *o = &c->field[i];
        int64_t p[DPAR_MAX_DIMS], q[DPAR_MAX_DIMS];
        int sign;
        if (!o->has) {
            continue;
        }
        first_point(&o->box, p);
        do {
            if (image(o, p, q, &sign) && cell(o, p, 0)) {
                filled = 1;
            }
        } while (next_point(&o->box, p));
    }
    if ((st == DPAR_E_ARG) != filled) {
        say("poison was not seen", &why, comm->rank);
    }
    if (dpar_halo_plan_exchange(x) != DPAR_OK ||
        dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why) != DPAR_OK) {
        say("not filled", &why, comm->rank);
    }
    if (dpar_halo_plan_check(x, DPAR_HALO_WRONG, &why) != DPAR_OK) {
        say(what, &why, comm->rank);
    }
    for (int i = 0; i < c->fields && comm->rank == comm->size - 1 && !any; i++) {
        one_field *o = &c->field[i];
        int64_t p[DPAR_MAX_DIMS], q[DPAR_MAX_DIMS];
        int sign;
        if (!o->has) {
            continue;
        }
        first_point(&o->box, p);
        do {
            if (!any && image(o, p, q, &sign) && cell(o, p, 0)) {
                set(o->f.type, cell(o, p, 0), -3);
                any = 1;
            }
        } while (next_point(&o->box, p));
    }
    sum[0] = any;
    dpar_all_reduce(comm, sum, all, 1, DPAR_I64, DPAR_MAX, NULL);
    st = dpar_halo_plan_check(x, DPAR_HALO_WRONG, &why);
    if ((st == DPAR_E_MISMATCH) != (all[0] > 0)) {
        say("compare did not see a wrong cell", &why, comm->rank);
    }
}

static void one_way(one_case *c, dpar_comm *comm, int32_t way, int ordered, rng *r)
{
    dpar_halo_field f[FIELDS];
    dpar_halo_plan_desc o;
    dpar_halo_plan *x = NULL;
    dpar_why why;
    int64_t bytes = 0;
    void *memory = NULL;
    char what[80];
    memset(&o, 0, sizeof o);
    o.method = way;
    o.ordered = ordered;
    o.run_bytes = below(r, 3) * 16;
    o.timers = below(r, 2);
    why.text[0] = 0;
    for (int i = 0; i < c->fields; i++) {
        f[i] = c->field[i].f;
    }
    snprintf(what, sizeof what, "method %d ordered %d seed %u", (int)way, ordered, r->state);
    if (plan_bytes(comm, f, c->fields, &o, &bytes, &why) != DPAR_OK ||
        posix_memalign(&memory, 64, (size_t)bytes) != 0 ||
        plan_init(memory, bytes, comm, f, c->fields, &o, &x, &why) != DPAR_OK) {
        say(what, &why, comm->rank);
        free(memory);
        return;
    }
    looks(c, comm, x, o.timers, what);
    for (int k = 0; k < 6; k++) {
        const int32_t op = k % 3 == 1 ? DPAR_SUM : k == 2 ? DPAR_MAX : DPAR_MIN;
        const int how = below(r, 3) == 0;
        if (k % 3 == 0) {
            fill(c);
            if (dpar_halo_plan_begin(x) != DPAR_OK || !ended(x, how)) {
                say(what, &comm->why, comm->rank);
                break;
            }
            check_forward(c, comm, what);
        } else {
            fill_adjoint(c);
            if (dpar_halo_plan_reduce_begin(x, op) != DPAR_OK || !ended(x, how)) {
                say(what, &comm->why, comm->rank);
                break;
            }
            check_adjoint(c, comm->size, op, what);
        }
    }
    if (dpar_halo_plan_free(x) != DPAR_OK) {
        say("close", &comm->why, comm->rank);
    }
    free(memory);
}

typedef struct arguments {
    int rounds;
    uint32_t seed;
} arguments;

/* ---- wrong use, and other arrays in place of the first ---- */

static void expect(dpar_comm *comm, const char *what, dpar_status got, dpar_status want,
                   const dpar_why *why)
{
    if (got != want || (want < 0 && why && why->text[0] == 0)) {
        printf("WRONG rank %d: %s: %s (%s), expected %s\n", comm->rank, what, dpar_status_text(got),
               why ? why->text : "", dpar_status_text(want));
        fflush(stdout);
        wrong++;
    }
}

static dpar_status tried(dpar_comm *comm, void *memory, int64_t room, dpar_halo_field *f,
                         dpar_halo_plan_desc *o, dpar_why *why)
{
    dpar_halo_plan *x = NULL;
    dpar_status st;
    memset(why, 0, sizeof *why);
    st = plan_init(memory, room, comm, f, 1, o, &x, why);
    return st == DPAR_OK ? dpar_halo_plan_free(x) : st;
}

static int misuse_main(dpar_comm *comm, void *arg)
{
    enum { OWN = 3, SIDE = OWN + 2 };
    const int64_t extent[1] = {OWN * comm->size};
    const int32_t parts[1] = {comm->size};
    const int last = comm->rank == comm->size - 1;
    dpar_placement place[1];
    dpar_mesh mesh;
    dpar_halo h, cut;
    dpar_halo_field f, g;
    dpar_halo_plan_desc o;
    dpar_halo_plan *x = NULL;
    dpar_why why;
    int64_t bytes = 0;
    void *memory = NULL, *shared = NULL;
    double *a, *b, alone[SIDE];
    (void)arg;
    memset(&h, 0, sizeof h);
    memset(&f, 0, sizeof f);
    memset(&o, 0, sizeof o);
    place[0] = dpar_shard(0);
    dpar_mesh_init(&mesh, "x", parts, DPAR_ORDER_LAST_FASTEST, comm->size, NULL);
    dpar_layout_init(&h.grid, &mesh, 1, extent, place, NULL);
    h.periodic = 1;
    h.low[0] = h.high[0] = 1;
    f.halo = &h;
    f.type = DPAR_F64;
    o.method = DPAR_HALO_DIRECT;
    o.run_bytes = 8;
    dpar_comm_alloc(comm, 2 * SIDE * 8, &shared);
    a = (double *)shared;
    b = a + SIDE;
    f.data = a;
    if (plan_bytes(comm, &f, 1, &o, &bytes, &why) != DPAR_OK ||
        posix_memalign(&memory, 64, (size_t)bytes) != 0) {
        say("bytes", &why, comm->rank);
        return 1;
    }
    expect(comm, "plain", tried(comm, memory, bytes, &f, &o, &why), DPAR_OK, NULL);
    expect(comm, "too little memory on one rank, all hear it",
           tried(comm, memory, bytes - last, &f, &o, &why), DPAR_E_ROOM, &why);
    g = f;
    g.type = last ? DPAR_I64 : DPAR_F64;
    expect(comm, "another type on one rank", tried(comm, memory, bytes, &g, &o, &why),
           comm->size > 1 ? DPAR_E_MISMATCH : DPAR_OK, &why);
    g = f;
    cut = *f.halo;
    cut.grid.axis[0].rule = last ? DPAR_SPLIT_EVEN : DPAR_SPLIT_CHUNK;
    g.halo = &cut;
    expect(comm, "another cut on one rank", tried(comm, memory, bytes, &g, &o, &why),
           comm->size > 1 ? DPAR_E_MISMATCH : DPAR_OK, &why);
    g = f;
    g.data = last ? NULL : a;
    expect(comm, "no data on one rank", tried(comm, memory, bytes, &g, &o, &why), DPAR_E_ARG, &why);
    g = f;
    g.wire_type = DPAR_F16;
    expect(comm, "f64 as f16", tried(comm, memory, bytes, &g, &o, &why), DPAR_E_ARG, &why);
    g = f;
    g.type = DPAR_F4;
    expect(comm, "a type without bytes", tried(comm, memory, bytes, &g, &o, &why), DPAR_E_ARG,
           &why);
    g = f;
    g.vector = 2;
    expect(comm, "pairs of one component", tried(comm, memory, bytes, &g, &o, &why), DPAR_E_ARG,
           &why);
    o.method = 9;
    expect(comm, "method 9", tried(comm, memory, bytes, &f, &o, &why), DPAR_E_ARG, &why);
    o.method = DPAR_HALO_DIRECT;
    if (plan_init(memory, bytes, comm, &f, 1, &o, &x, &why) != DPAR_OK) {
        say("init", &why, comm->rank);
        return 1;
    }
    for (int k = 0; k < 20; k++) { /* old and new swap places, also for the peers */
        double *now = k % 3 ? a : b;
        for (int i = 0; i < SIDE; i++) {
            now[i] = i == 0 || i > OWN ? -1 : 1000 * k + comm->rank * OWN + i - 1;
        }
        expect(comm, "bind", dpar_halo_plan_bind(x, 0, now, NULL), DPAR_OK, NULL);
        expect(comm, "run", dpar_halo_plan_begin(x), DPAR_OK, NULL);
        if (k == 0) {
            expect(comm, "bind within", dpar_halo_plan_bind(x, 0, a, NULL), DPAR_E_ARG, NULL);
            expect(comm, "compare within", dpar_halo_plan_check(x, DPAR_HALO_WRONG, &why),
                   DPAR_E_ARG, &why);
        }
        expect(comm, "end", dpar_halo_plan_end(x), DPAR_OK, NULL);
        if ((int)now[0] != 1000 * k + (comm->rank * OWN + (int)extent[0] - 1) % (int)extent[0] ||
            (int)now[SIDE - 1] != 1000 * k + (comm->rank + 1) * OWN % (int)extent[0]) {
            say("values of another array", NULL, comm->rank);
        }
    }
    expect(comm, "product", dpar_halo_plan_reduce_begin(x, DPAR_PRODUCT), DPAR_E_ARG, NULL);
    expect(comm, "field 1", dpar_halo_plan_bind(x, 1, a, NULL), DPAR_E_ARG, NULL);
    expect(comm, "no field", dpar_halo_plan_bind(x, 0, NULL, NULL), DPAR_E_ARG, NULL);
    if (comm->size > 1) {
        expect(comm, "bind of private memory", dpar_halo_plan_bind(x, 0, alone, NULL), DPAR_E_ARG,
               &comm->why);
    }
    expect(comm, "close", dpar_halo_plan_free(x), DPAR_OK, NULL);
    free(memory);
    return wrong;
}

static int rank_main(dpar_comm *comm, void *arg)
{
    const arguments *a = (const arguments *)arg;
    one_case *c = (one_case *)malloc(sizeof *c);
    dpar_comm *node = NULL;
#ifndef USE_MPI /* as if every two ranks were a node */
    if (comm->size > 2 && dpar_comm_split(comm, comm->rank / 2, 0, &node) != DPAR_OK) {
        say("split", &comm->why, comm->rank);
    }
#endif
    for (int i = 0; i < a->rounds && wrong == 0; i++) {
        rng r;
        dpar_why why;
        dpar_status st = DPAR_OK;
        r.state = a->seed * 7919u + (uint32_t)i * 104729u + (uint32_t)comm->size;
        below(&r, 2);
        make_case(c, &r, comm->size);
        for (int k = 0; k < c->fields && st == DPAR_OK; k++) {
            st = dpar_halo_check(&c->field[k].halo, &why);
        }
        if (st != DPAR_OK) {
            continue;
        }
        if (!make_memory(c, comm)) {
            say("no memory", NULL, comm->rank);
            break;
        }
        for (int32_t way = DPAR_HALO_AUTO; way <= DPAR_HALO_DIRECT; way++) {
            one_way(c, comm, way, 0, &r);
            if (!only_direct(c)) {
                one_way(c, comm, way, 1, &r);
            }
        }
        if (node) {
            comm->node = node;
            one_way(c, comm, DPAR_HALO_AUTO, !only_direct(c) && below(&r, 2), &r);
            comm->node = NULL;
        }
        free_memory(c, comm);
    }
    free(c);
    if (node && dpar_comm_free(node) != DPAR_OK) {
        say("close", &comm->why, comm->rank);
    }
    return wrong;
}

#ifdef USE_MPI
int main(int argc, char **argv)
{
    arguments a = {40, 1};
    dpar_comm *comm;
    int bad;
    MPI_Init(&argc, &argv);
    if (dpar_mpi_make(MPI_COMM_WORLD, NULL, &comm, NULL) != DPAR_OK) {
        return 2;
    }
    bad = rank_main(comm, &a);
    dpar_comm_free(comm);
    MPI_Finalize();
    return bad != 0;
}
#else
int main(int argc, char **argv)
{
    arguments a = {10, 1};
    dpar_world_desc options;
    dpar_why why;
    int first = 1, last = 8, bad = 0;
    memset(&options, 0, sizeof options);
    options.timeout_s = 20;
    for (int n = 1; n <= 4 && argc == 1; n++) {
        if (dpar_launch(n, misuse_main, &a, &options, &why) != DPAR_OK) {
            printf("WRONG %d ranks: %s\n", n, why.text);
            bad = 1;
        }
    }
    if (argc > 1) {
        first = last = atoi(argv[1]);
    }
    a.rounds = argc > 2 ? atoi(argv[2]) : a.rounds;
    a.seed = argc > 3 ? (uint32_t)atoi(argv[3]) : a.seed;
    options.threads = argc > 4 && strcmp(argv[4], "threads") == 0;
    for (int n = first; n <= last; n++) {
        why.text[0] = 0;
        if (dpar_launch(n, rank_main, &a, &options, &why) != DPAR_OK) {
            printf("WRONG %d ranks: %s\n", n, why.text);
            bad = 1;
        }
    }
    if (!bad) {
        printf("halo exchanges of %d to %d ranks: right\n", first, last);
    }
    return bad;
}
#endif
