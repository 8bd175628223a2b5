/* SPDX-License-Identifier: MIT-0 */
/* Process grids. Every function here works on ordered factorisations of a number of ranks, which it
 * enumerates from the prime factors. dpar_cart_dims takes the most balanced factorisation;
 * dpar_cart_choose_parts finds the one with the least cut by branch and bound; mappings to nodes
 * use the same search for bricks. Space-filling curves walk down a cube of side 2^k and skip whole
 * subcubes outside the grid, so that no table of ranks is needed. */
#include "cart.h"

#include "index_private.h"

/* ---- prime factors and divisors ---- */

enum { DPARI_CART_PRIMES = 9 }; /* 2 * 3 * 5 * .. * 23 < 2^31 < 2 * 3 * .. * 29 */

typedef struct dpari_cart_primes {
    int32_t count;
    int32_t prime[DPARI_CART_PRIMES];
} dpari_cart_primes;

/* Lists the distinct primes of n, in ascending order. */
static dpari_cart_primes dpari_cart_factor(int32_t n)
{
    dpari_cart_primes f;
    int32_t p;
    dpari_zero(&f, sizeof(f));
    for (p = 2; p <= n / p; p += p > 2 ? 2 : 1) {
        if (n % p == 0) {
            f.prime[f.count++] = p;
        }
        while (n % p == 0) {
            n /= p;
        }
    }
    if (n > 1) {
        f.prime[f.count++] = n;
    }
    return f;
}

/* Returns the smallest divisor of n that is at least `least`, or 0. f has the primes of a multiple
 * of n. The exponents of the primes count like an odometer: wheel i is the power of prime i, which
 * is at most full[i]. */
static int32_t dpari_cart_divisor_from(const dpari_cart_primes *f, int32_t n, int32_t least)
{
    int32_t full[DPARI_CART_PRIMES], i, d = 1, best = n;
    if (least <= 1 || least > n) {
        return least <= 1;
    }
    for (i = 0; i < f->count; i++) {
        for (full[i] = 1; n / full[i] % f->prime[i] == 0;) {
            full[i] *= f->prime[i];
        }
    }
    do {
        best = d >= least && d < best ? d : best;
        for (i = 0; i < f->count && d % full[i] == 0; i++) {
            d /= full[i];
        }
        d *= i < f->count ? f->prime[i] : 1;
    } while (i < f->count);
    return best;
}

/* Returns the largest divisor of n that is at most `most` >= 1. */
static int32_t dpari_cart_divisor_upto(const dpari_cart_primes *f, int32_t n, int32_t most)
{
    return n / dpari_cart_divisor_from(f, n, (int32_t)dpari_ceil_div(n, most));
}

/* Returns base^exponent, or any number above `limit` if it exceeds that; base, limit < 2^31. */
static int64_t dpari_cart_power(int32_t base, int32_t exponent, int32_t limit)
{
    int64_t v = 1;
    int32_t i;
    for (i = 0; i < exponent && v <= limit; i++) {
        v *= base;
    }
    return v;
}

/* Returns the smallest r with r^k >= n, for k >= 1 and n >= 1. */
static int32_t dpari_cart_root(int32_t n, int32_t k)
{
    int32_t low = 1, high = n;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (dpari_cart_power(middle, k, n) >= n) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Appends the sizes of a grid, as in "64 x 64 x 8". */
static DPARI_COLD void dpari_cart_put(dpar_text *text, int32_t dims, const int64_t *n)
{
    int32_t d;
    for (d = 0; d < dims; d++) {
        dpar_text_put(text, d > 0 ? " x " : "");
        dpari_text_int(text, n[d]);
    }
}

/* Appends the parts that the caller fixed, as in ", where parts[0] is 1". */
static DPARI_COLD void dpari_cart_put_fixed(dpar_text *text, int32_t dims, const int32_t *parts)
{
    const char *before = ", where ";
    int32_t d;
    for (d = 0; d < dims; d++) {
        if (parts[d] > 0) {
            dpari_text_say(text, "%sparts[%d] is %d", before, d, parts[d]);
            before = " and ";
        }
    }
}

/* Sets *open to the number of parts that are 0 (free), and *rest to ranks / product of the other
 * parts. */
static dpar_status dpari_cart_rest(int32_t ranks, int32_t dims, const int32_t *parts, int32_t *open,
                                   int32_t *rest, dpar_why *why)
{
    int64_t fixed = 1;
    int32_t d, zeros = 0;
    for (d = 0; d < dims; d++) {
        if (parts[d] < 0) {
            return dpari_wrong(why, "parts[%d] is %d: give 0 to have it chosen, or at least 1", d,
                               parts[d]);
        }
        zeros += parts[d] == 0;
        if (!dpari_mul(fixed, parts[d] > 0 ? parts[d] : 1, &fixed)) {
            fixed = INT64_MAX;
        }
    }
    if (ranks % fixed != 0) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "the fixed parts multiply to %ld, which does not divide %d ranks", fixed,
                         ranks);
    }
    if (zeros == 0 && fixed != ranks) {
        return dpari_say(DPAR_E_DIVIDE, why, "the parts multiply to %ld, but there are %d ranks",
                         fixed, ranks);
    }
    *open = zeros;
    *rest = (int32_t)(ranks / fixed);
    return DPAR_OK;
}

/* ---- MPI_Dims_create ---- */

typedef struct dpari_dims {
    dpari_cart_primes primes;
    int32_t count; /* number of parts to choose */
    int32_t gap;   /* largest - smallest part of the best solution so far */
    int32_t part[DPAR_MAX_AXES], best[DPAR_MAX_AXES], rest[DPAR_MAX_AXES];
} dpari_dims;

/* Finds the lexicographically smallest x[0] >= x[1] >= .. >= x[k - 2] >= least with product n and
 * x[0] - least < gap. The search is depth-first in ascending order, so that the first solution is
 * the smallest one. */
static int dpari_dims_above(dpari_dims *s, int32_t n, int32_t least)
{
    const int32_t last = s->count - 2;
    int32_t j = 0;
    s->rest[0] = n;
    s->part[0] = 0;
    while (j >= 0) {
        int64_t most = j > 0 ? s->part[j - 1] : (int64_t)least + s->gap - 1;
        int32_t next;
        if (j == last) {
            next = s->part[j] == 0 ? s->rest[j] : 0;
        } else {
            int32_t from = s->part[j] + 1;
            if (s->part[j] == 0) {
                from = dpari_cart_root(s->rest[j], last - j + 1);
            }
            next = dpari_cart_divisor_from(&s->primes, s->rest[j], from);
        }
        if (next == 0 || next > most ||
            dpari_cart_power(least, last - j, s->rest[j] / next) > s->rest[j] / next) {
            j--; /* larger parts leave even less to the other axes */
            continue;
        }
        s->part[j] = next;
        if (j == last) {
            return 1;
        }
        s->rest[j + 1] = s->rest[j] / next;
        s->part[++j] = 0;
    }
    return 0;
}

/* Tries the smallest part m, from the k-th root of n downwards. The largest part is at least the
 * (k-1)-th root of n / m, which grows as m falls, so that the search ends once their difference is
 * too large. */
static void dpari_dims_search(dpari_dims *s, int32_t n)
{
    int32_t i, m = dpari_cart_root(n, s->count);
    m = dpari_cart_divisor_upto(&s->primes, n, dpari_cart_power(m, s->count, n) > n ? m - 1 : m);
    while (m > 0 && dpari_cart_root(n / m, s->count - 1) - m < s->gap) {
        if (dpari_dims_above(s, n / m, m)) {
            for (i = 0; i < s->count - 1; i++) {
                s->best[i] = s->part[i];
            }
            s->best[s->count - 1] = m;
            s->gap = s->part[0] - m;
        }
        m = m > 1 ? dpari_cart_divisor_upto(&s->primes, n, m - 1) : 0;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_cart_dims(int32_t ranks, int32_t dims, int32_t *parts,
                                               dpar_why *why)
{
    dpari_dims s;
    dpar_status st;
    int32_t rest, d, next = 0;
    if (ranks < 1 || dims < 0 || dims > DPAR_MAX_AXES) {
        return dpari_wrong(why, "ranks=%d must be at least 1, dims=%d must be 0 to %d", ranks, dims,
                           (int32_t)DPAR_MAX_AXES);
    }
    dpari_zero(&s, sizeof(s));
    st = dpari_cart_rest(ranks, dims, parts, &s.count, &rest, why);
    if (st != DPAR_OK) {
        return st;
    }
    s.gap = INT32_MAX;
    s.best[0] = rest;
    if (s.count > 1) {
        s.primes = dpari_cart_factor(rest);
        dpari_dims_search(&s, rest);
    }
    for (d = 0; d < dims; d++) {
        if (parts[d] == 0) {
            parts[d] = s.best[next++];
        }
    }
    return DPAR_OK;
}

/* ---- ordered factorisations ---- */

DPARI_API DPARI_COLD dpar_status dpari_cart_next_parts(int32_t ranks, int32_t dims, int32_t *parts)
{
    dpari_cart_primes f;
    int32_t x[DPAR_MAX_DIMS], rest[DPAR_MAX_DIMS], j, d;
    if (ranks < 1 || dims < 1 || dims > DPAR_MAX_DIMS) {
        return DPAR_E_ARG;
    }
    f = dpari_cart_factor(ranks);
    rest[0] = ranks;
    j = parts[0] == 0 ? 0 : dims - 1; /* the last axis has only one choice, so it steps back */
    for (d = 0; d <= j; d++) {
        x[d] = parts[d];
        if (x[d] < 0 || (j > 0 && (x[d] == 0 || rest[d] % x[d] != 0))) {
            return DPAR_E_ARG;
        }
        if (d < j) {
            rest[d + 1] = rest[d] / x[d];
        }
    }
    while (j >= 0) {
        if (j == dims - 1) {
            x[j] = x[j] == 0 ? rest[j] : 0;
        } else {
            x[j] = x[j] < rest[j] ? dpari_cart_divisor_from(&f, rest[j], x[j] + 1) : 0;
        }
        if (x[j] == 0) {
            j--;
            continue;
        }
        if (j == dims - 1) {
            break;
        }
        rest[j + 1] = rest[j] / x[j];
        x[++j] = 0;
    }
    for (d = 0; d < dims && j >= 0; d++) {
        parts[d] = x[d];
    }
    return j >= 0 ? DPAR_OK : DPAR_DONE;
}

/* ---- the least cut ---- */

typedef struct dpari_cart_grid {
    dpari_cart_primes primes;
    int32_t axes;                 /* number of free axes, which j counts */
    int32_t divides;              /* 1 if parts must divide cells */
    int32_t found;                /* 1 once best[] is set; its cost is `limit` */
    uint32_t wraps;               /* bit j: axis j is periodic */
    int32_t cells[DPAR_MAX_DIMS]; /* maximum number of parts, limited to 2^31 - 1 */
    int64_t face[DPAR_MAX_DIMS];  /* cost of one plane of the cut */
    int32_t log[DPAR_MAX_DIMS];   /* dpari_cart_log2 of face, where that is not 0 */
    int32_t part[DPAR_MAX_DIMS], best[DPAR_MAX_DIMS];
    int32_t rest[DPAR_MAX_DIMS + 1]; /* ranks that axes j, j + 1, ... must make */
    int64_t cost[DPAR_MAX_DIMS + 1]; /* cost of axes 0..j-1 and of the fixed ones */
    int64_t limit;                   /* the search looks for costs below this */
} dpari_cart_grid;

/* Returns how many planes cut an axis. The ends of a periodic axis are one more cut. */
static int64_t dpari_cart_planes(int32_t parts, uint32_t wraps)
{
    return wraps != 0 && parts > 1 ? parts : parts - 1;
}

/* Returns a * b, or INT64_MAX if it is larger. */
static int64_t dpari_cart_times(int64_t a, int64_t b)
{
    int64_t p;
    return dpari_mul(a, b, &p) ? p : INT64_MAX;
}

/* Returns log2(v) * 2^16 rounded down, at most 2 too small, for v >= 1. Each squaring gives one bit
 * of the logarithm. */
static int32_t dpari_cart_log2(int64_t v)
{
    uint64_t m = (uint64_t)v;
    int32_t whole = 0, bit, log;
    while (m >> whole > 1) {
        whole++;
    }
    m = whole > 31 ? m >> (whole - 31) : m << (31 - whole);
    log = whole * (int32_t)65536;
    for (bit = 15; bit >= 0; bit--) {
        m = m * m >> 31;
        if (m >> 32 != 0) {
            m >>= 1;
            log += (int32_t)1 << bit;
        }
    }
    return log;
}

/* True if a choice for the axes from j on may still cost less than the limit. For z axes with faces
 * a_d > 0 that must make r ranks, sum a_d (p_d - 1) >= z (r product a_d)^(1/z) - sum a_d
 * (arithmetic and geometric mean). The two sides are compared as logarithms, rounded so that 0 is
 * always right. Axes that cost nothing get as many ranks as they have cells. */
static int dpari_grid_hopes(const dpari_cart_grid *grid, int32_t j)
{
    const int64_t slack = grid->limit - grid->cost[j]; /* above 0, because the search skips costs
                                                          from the limit on */
    int64_t room = 1, idle = 1, faces = 0;
    int32_t z = 0, logs = 0, i;
    for (i = j; i < grid->axes; i++) {
        room = dpari_cart_times(room, grid->cells[i]);
        if (grid->face[i] > 0) {
            faces += grid->face[i];
            logs += grid->log[i];
            z++;
        } else {
            idle = dpari_cart_times(idle, grid->cells[i]);
        }
    }
    if (grid->rest[j] > room) {
        return 0;
    }
    if (z == 0 || faces > INT64_MAX - slack) {
        return 1;
    }
    return dpari_cart_log2(dpari_ceil_div(grid->rest[j], idle)) + logs + z * dpari_cart_log2(z) <
           z * (dpari_cart_log2(faces + slack) + 2);
}

static int dpari_grid_fits(const dpari_cart_grid *grid, int32_t j, int32_t parts)
{
    return parts <= grid->cells[j] && (!grid->divides || grid->cells[j] % parts == 0);
}

/* Sets the next larger choice for axis j, or returns 0 if there is none. The last axis takes all
 * remaining ranks. */
static int32_t dpari_grid_advance(const dpari_cart_grid *grid, int32_t j)
{
    int32_t x = grid->part[j];
    if (j == grid->axes - 1) {
        return x == 0 && dpari_grid_fits(grid, j, grid->rest[j]) ? grid->rest[j] : 0;
    }
    do {
        x = x < grid->rest[j] ? dpari_cart_divisor_from(&grid->primes, grid->rest[j], x + 1) : 0;
    } while (x > 0 && x <= grid->cells[j] && !dpari_grid_fits(grid, j, x));
    return x <= grid->cells[j] ? x : 0;
}

/* Searches depth-first for the choice of least cost, and keeps the first one of equal cost. */
static void dpari_grid_search(dpari_cart_grid *grid)
{
    int32_t j = 0, d;
    grid->part[0] = 0;
    while (j >= 0) {
        int32_t x = dpari_grid_advance(grid, j);
        int64_t cost = grid->cost[j] +
                       grid->face[j] * (x > 0 ? dpari_cart_planes(x, grid->wraps >> j & 1u) : 0);
        if (x == 0 || cost >= grid->limit) {
            j--; /* parts ascend, so later choices cost more */
            continue;
        }
        grid->part[j] = x;
        grid->cost[j + 1] = cost;
        grid->rest[j + 1] = grid->rest[j] / x;
        if (j + 1 == grid->axes) {
            for (d = 0; d < grid->axes; d++) {
                grid->best[d] = grid->part[d];
            }
            grid->limit = cost;
            grid->found = 1;
        } else if (dpari_grid_hopes(grid, j + 1)) {
            grid->part[++j] = 0;
        }
    }
}

/* Finds a first solution, whose cost is the first limit: it gives each prime, largest first, to the
 * axis where it costs least. */
static void dpari_grid_guess(dpari_cart_grid *grid)
{
    int32_t i, j, to, n = grid->rest[0];
    int64_t cost = grid->cost[0];
    for (j = 0; j < grid->axes; j++) {
        grid->part[j] = 1;
    }
    for (i = grid->primes.count - 1; i >= 0; i--) {
        const int32_t p = grid->primes.prime[i];
        for (; n % p == 0; n /= p) {
            for (j = 0, to = -1; j < grid->axes; j++) {
                if (dpari_grid_fits(grid, j, grid->part[j] * p) &&
                    (to < 0 || grid->face[j] * grid->part[j] < grid->face[to] * grid->part[to])) {
                    to = j;
                }
            }
            if (to < 0) {
                return;
            }
            grid->part[to] *= p;
        }
    }
    for (j = 0; j < grid->axes; j++) {
        cost += grid->face[j] * dpari_cart_planes(grid->part[j], grid->wraps >> j & 1u);
    }
    grid->limit = cost + 1;
}

/* Computes the cost of one plane of the cut across an axis: its weight times the cells of the other
 * axes. */
static dpar_status dpari_grid_face(int32_t dims, const int64_t *cells, const int64_t *weight,
                                   int32_t axis, int64_t *face, dpar_why *why)
{
    dpar_text t;
    int64_t f = weight != NULL ? weight[axis] : 1;
    int32_t d;
    for (d = 0; d < dims; d++) {
        if (d != axis && !dpari_mul(f, cells[d], &f)) {
            dpari_text_why(&t, why);
            dpar_text_put(&t, "the faces of ");
            dpari_cart_put(&t, dims, cells);
            dpari_text_say(&t, " cells across dim %d exceed 2^63 - 1", axis);
            return DPAR_E_RANGE;
        }
    }
    *face = f;
    return DPAR_OK;
}

static dpar_status dpari_grid_check_dims(int32_t dims, const int64_t *cells, const int64_t *weight,
                                         const int32_t *parts, dpar_why *why)
{
    int32_t d;
    if (dims < 0 || dims > DPAR_MAX_DIMS) {
        return dpari_wrong(why, "dims must be 0 to %d, not %d", (int32_t)DPAR_MAX_DIMS, dims);
    }
    for (d = 0; d < dims; d++) {
        if (cells[d] < 1 || (weight != NULL && weight[d] < 0)) {
            return dpari_wrong(why, "dim %d: cells=%ld must be at least 1, weight=%ld at least 0",
                               d, cells[d], weight != NULL ? weight[d] : 1);
        }
        if (parts[d] > cells[d]) {
            return dpari_wrong(why, "dim %d is fixed at %d parts but has only %ld cells", d,
                               parts[d], cells[d]);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_grid_passes(int32_t dims, const int64_t *cells, int64_t ranks,
                                     dpar_why *why)
{
    dpar_text t;
    dpari_text_why(&t, why);
    dpar_text_put(&t, "the cut of ");
    dpari_cart_put(&t, dims, cells);
    dpari_text_say(&t, " cells into %ld parts may exceed 2^63 - 1", ranks);
    return DPAR_E_RANGE;
}

/* Returns the cost that dpari_grid_face computes, after dpari_grid_bound has found that it does not
 * overflow. */
static int64_t dpari_grid_plane(int32_t dims, const int64_t *cells, const int64_t *weight,
                                int32_t axis)
{
    int64_t face = weight != NULL ? weight[axis] : 1;
    int32_t d;
    for (d = 0; d < dims; d++) {
        face *= d != axis ? cells[d] : 1;
    }
    return face;
}

/* Checks that the cost of the most expensive cut does not overflow. */
static dpar_status dpari_grid_bound(int32_t ranks, int32_t dims, const int64_t *cells,
                                    const int64_t *weight, dpar_why *why)
{
    int64_t worst = 0, face = 0, dearest;
    int32_t d;
    for (d = 0; d < dims; d++) {
        dpar_status st = dpari_grid_face(dims, cells, weight, d, &face, why);
        if (st != DPAR_OK) {
            return st;
        }
        dearest = dpari_cart_times(face, dpari_least(cells[d], ranks));
        if (dearest > INT64_MAX - 2 - worst) {
            return dpari_grid_passes(dims, cells, ranks, why);
        }
        worst += dearest;
    }
    return DPAR_OK;
}

/* Puts the free axes into g and the cost of the fixed ones into g.cost[0], and searches. The
 * arguments have been checked. Returns 0 if there is no such grid. */
DPARI_COLD DPARI_STATIC_NOINLINE int dpari_grid_best(int32_t divides, int32_t rest, int32_t dims,
                                                     const int64_t *cells, const int64_t *weight,
                                                     uint32_t periodic, int32_t *parts,
                                                     int64_t *cut)
{
    dpari_cart_grid g;
    int32_t d, j = 0;
    dpari_zero(&g, sizeof(g));
    for (d = 0; d < dims; d++) {
        const uint32_t wraps = periodic >> d & 1u;
        const int64_t face = dpari_grid_plane(dims, cells, weight, d);
        if (parts[d] > 0) {
            g.cost[0] += face * dpari_cart_planes(parts[d], wraps);
        } else {
            g.wraps |= wraps << g.axes;
            g.log[g.axes] = face > 0 ? dpari_cart_log2(face) : 0;
            g.cells[g.axes] = (int32_t)dpari_least(cells[d], INT32_MAX);
            g.face[g.axes++] = face;
        }
    }
    g.rest[0] = rest;
    g.divides = divides;
    g.limit = g.axes > 0 ? INT64_MAX : g.cost[0];
    if (g.axes > 0) {
        g.primes = dpari_cart_factor(g.rest[0]);
        dpari_grid_guess(&g);
        dpari_grid_search(&g);
    }
    if (g.axes > 0 && !g.found) {
        return 0;
    }
    for (d = 0; d < dims; d++) {
        parts[d] = parts[d] == 0 ? g.best[j++] : parts[d];
    }
    if (cut != NULL) {
        *cut = g.limit;
    }
    return 1;
}

/* Checks all arguments. *rest receives the ranks that the free axes must make. */
DPARI_STATIC_NOINLINE DPARI_COLD dpar_status dpari_grid_check(int32_t ranks, int32_t dims,
                                                              const int64_t *cells,
                                                              const int64_t *weight,
                                                              const int32_t *parts, int32_t *rest,
                                                              dpar_why *why)
{
    dpar_status st = dpari_grid_check_dims(dims, cells, weight, parts, why);
    int32_t open = 0;
    if (st == DPAR_OK) {
        st = dpari_cart_rest(ranks, dims, parts, &open, rest, why);
    }
    return st == DPAR_OK ? dpari_grid_bound(ranks, dims, cells, weight, why) : st;
}

/* Does the work of dpar_cart_choose_parts. With `divides` it finds the grid of nodes whose bricks
 * tile a grid of ranks, so the parts must divide the cells. */
static dpar_status dpari_grid_solve(int32_t divides, int32_t ranks, int32_t dims,
                                    const int64_t *cells, const int64_t *weight, uint32_t periodic,
                                    int32_t *parts, int64_t *cut, dpar_why *why)
{
    dpar_text t;
    int32_t rest = 0;
    dpar_status st = dpari_grid_check(ranks, dims, cells, weight, parts, &rest, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (!dpari_grid_best(divides, rest, dims, cells, weight, periodic, parts, cut)) {
        dpari_text_why(&t, why);
        dpari_text_say(&t, "no grid of %d ranks has at most ", ranks);
        dpari_cart_put(&t, dims, cells);
        dpar_text_put(&t, " parts");
        dpari_cart_put_fixed(&t, dims, parts);
        return DPAR_E_NONE;
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_cart_choose_parts(const dpar_cart_choose_desc *grid,
                                                       int32_t *parts, int64_t *cut, dpar_why *why)
{
    const int64_t *weight = NULL;
    int32_t d;
    if (grid->ranks < 1) {
        return dpari_wrong(why, "ranks is %d: must be at least 1", grid->ranks);
    }
    for (d = 0; d < grid->dims && d < DPAR_MAX_DIMS; d++) {
        weight = grid->weight[d] != 0 ? grid->weight : weight;
    }
    return dpari_grid_solve(0, grid->ranks, grid->dims, grid->cells, weight, grid->periodic, parts,
                            cut, why);
}

/* ---- owners in a grid ---- */

/* Returns how many ranks a grid has, or 0 if its parts are not valid. */
static int64_t dpari_cart_ranks(int32_t dims, const int64_t *cells, const int32_t *parts)
{
    int64_t ranks = 1;
    int32_t d;
    if (dims < 1 || dims > DPAR_MAX_DIMS) {
        return 0;
    }
    for (d = 0; d < dims; d++) {
        if (cells[d] < 0 || parts[d] < 1 || ranks > INT32_MAX / parts[d]) {
            return 0;
        }
        ranks *= parts[d];
    }
    return ranks;
}

DPAR_API int32_t dpar_cart_owner(int32_t dims, const int64_t *cells, const int32_t *parts,
                                 const int64_t *cell)
{
    int32_t d, rank = 0;
    if (dpari_cart_ranks(dims, cells, parts) == 0) {
        return -1;
    }
    for (d = 0; d < dims; d++) {
        if (cell[d] < 0 || cell[d] >= cells[d]) {
            return -1;
        }
        rank = rank * parts[d] + dpari_even_of(cells[d], parts[d], cell[d]);
    }
    return rank;
}

DPAR_API dpar_status dpar_cart_range(int32_t dims, const int64_t *cells, const int32_t *parts,
                                     int32_t rank, int64_t *first, int64_t *count)
{
    int32_t d;
    if (rank < 0 || rank >= dpari_cart_ranks(dims, cells, parts)) {
        return DPAR_E_ARG;
    }
    for (d = dims - 1; d >= 0; d--) {
        const int64_t c = rank % parts[d], each = cells[d] / parts[d], more = cells[d] % parts[d];
        first[d] = c * each + dpari_least(c, more);
        count[d] = each + (c < more);
        rank /= parts[d];
    }
    return DPAR_OK;
}

/* ---- Cartesian topology ---- */

DPAR_API DPARI_COLD dpar_status dpar_cart_init(dpar_cart *cart, int32_t dims, const int32_t *parts,
                                               uint32_t periodic, dpar_why *why)
{
    dpar_cart c;
    int64_t size = 1;
    int32_t d;
    if (dims < 0 || dims > DPAR_MAX_DIMS) {
        return dpari_wrong(why, "dims must be 0 to %d, not %d", (int32_t)DPAR_MAX_DIMS, dims);
    }
    dpari_zero(&c, sizeof(c));
    for (d = 0; d < dims; d++) {
        if (parts[d] < 1) {
            return dpari_wrong(why, "parts[%d] is %d: must be at least 1", d, parts[d]);
        }
        size *= parts[d];
        if (size > INT32_MAX) {
            return dpari_say(DPAR_E_RANGE, why, "axes 0 to %d make %ld ranks, more than 2^31 - 1",
                             d, size);
        }
        c.parts[d] = parts[d];
    }
    c.dims = dims;
    c.size = (int32_t)size;
    c.periodic = periodic & (((uint32_t)1 << dims) - 1);
    *cart = c;
    return DPAR_OK;
}

/* Wraps coordinate c around a periodic axis. Returns -1 if it is outside an axis that is not
 * periodic. |c| < 2^33. */
static int32_t dpari_cart_wrap(const dpar_cart *cart, int32_t axis, int64_t c)
{
    const int64_t n = cart->parts[axis];
    if (cart->periodic >> axis & 1u) {
        return (int32_t)((c % n + n) % n);
    }
    return c >= 0 && c < n ? (int32_t)c : -1;
}

static int32_t dpari_cart_three_to(int32_t dims)
{
    int32_t n = 1;
    while (dims-- > 0) {
        n *= 3;
    }
    return n;
}

/* Computes offset `index` of the box stencil, in row-major order from (-1, .., -1). Returns along
 * how many axes it moves. */
static int32_t dpari_cart_offset(int32_t dims, int32_t index, int32_t *offset)
{
    int32_t d, moves = 0;
    for (d = dims - 1; d >= 0; d--) {
        offset[d] = index % 3 - 1;
        moves += offset[d] != 0;
        index /= 3;
    }
    return moves;
}

/* Computes the coordinate next to another one. Returns 0 if it is outside of an axis that does not
 * wrap. */
static int dpari_cart_next(const dpar_cart *cart, const int32_t *coord, const int32_t *offset,
                           int32_t *next)
{
    int32_t d;
    for (d = 0; d < cart->dims; d++) {
        next[d] = dpari_cart_wrap(cart, d, (int64_t)coord[d] + offset[d]);
        if (next[d] < 0) {
            return 0;
        }
    }
    return 1;
}

DPARI_API DPARI_COLD int32_t dpari_stencil_axes(int32_t shape, int32_t dims)
{
    switch (shape) {
    case DPAR_STENCIL_STAR: return dims > 1 ? 1 : dims;
    case DPAR_STENCIL_EDGES: return dims > 2 ? 2 : dims;
    case DPAR_STENCIL_BOX: return dims;
    default: return 0;
    }
}

/* ---- mapping ---- */

static dpar_status dpari_place_check(int32_t kind, int32_t per_node, dpar_why *why)
{
    if (per_node < 1 || kind < 0 || kind >= DPAR_MAPPING_COUNT) {
        return dpari_wrong(why, "kind=%d must be 0 to %d, per_node=%d at least 1", kind,
                           (int32_t)DPAR_MAPPING_COUNT - 1, per_node);
    }
    return DPAR_OK;
}

/* Makes a mapping with bricks of one rank and the last axis fastest. `grid` may be inside
 * *mapping. */
static void dpari_place_start(dpar_mapping *mapping, const dpar_cart *grid, int32_t kind,
                              int32_t per_node)
{
    int32_t d;
    mapping->grid = *grid;
    mapping->kind = kind;
    mapping->per_node = per_node;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        mapping->brick[d] = 1;
        mapping->order[d] = d < mapping->grid.dims ? mapping->grid.dims - 1 - d : d;
    }
}

/* Finds the sides q of a node's brick, with product(q) = per_node, that leave the least surface
 * between nodes: the sum over d of weight[d] * planes[d] * product of the other parts. Of equal
 * solutions it takes the one with the fewest nodes along axis 0, then axis 1, and so on. weight
 * NULL means 1. There is a solution if per_node divides the ranks. */
static dpar_status dpari_place_bricks(dpar_mapping *place, const dpar_cart *grid, int32_t per_node,
                                      const int64_t *weight, dpar_why *why)
{
    int64_t parts[DPAR_MAX_DIMS];
    int32_t nodes[DPAR_MAX_DIMS], d;
    dpar_status st = dpari_place_check(DPAR_MAPPING_BRICKS, per_node, why);
    if (st == DPAR_OK && grid->size % per_node != 0) {
        st = dpari_say(DPAR_E_DIVIDE, why, "per_node is %d, which does not divide %d ranks",
                       per_node, grid->size);
    }
    if (st != DPAR_OK) {
        return st;
    }
    for (d = 0; d < grid->dims; d++) {
        parts[d] = grid->parts[d];
        nodes[d] = 0;
    }
    st = dpari_grid_solve(1, grid->size / per_node, grid->dims, parts, weight, grid->periodic,
                          nodes, NULL, why);
    if (st == DPAR_OK) {
        dpari_place_start(place, grid, DPAR_MAPPING_BRICKS, per_node);
    }
    for (d = 0; st == DPAR_OK && d < grid->dims; d++) {
        place->brick[d] = place->grid.parts[d] / nodes[d];
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_mapping_init(dpar_mapping *mapping, const dpar_cart *grid,
                                                  int32_t kind, int32_t ranks_per_node,
                                                  dpar_why *why)
{
    dpar_status st;
    if (kind == DPAR_MAPPING_BRICKS) {
        return dpari_place_bricks(mapping, grid, ranks_per_node, NULL, why);
    }
    st = dpari_place_check(kind, ranks_per_node, why);
    if (st == DPAR_OK) {
        dpari_place_start(mapping, grid, kind, ranks_per_node);
    }
    return st;
}

/* Returns the rank at a coordinate: nodes are numbered in their grid, and ranks within their
 * brick. */
static int32_t dpari_brick_rank(const dpar_mapping *mapping, const int32_t *coord)
{
    int32_t i, node = 0, inside = 0, volume = 1;
    for (i = mapping->grid.dims - 1; i >= 0; i--) {
        const int32_t d = mapping->order[i], q = mapping->brick[d];
        node = node * (mapping->grid.parts[d] / q) + coord[d] / q;
        inside = inside * q + coord[d] % q;
        volume *= q;
    }
    return node * volume + inside;
}

static void dpari_brick_coords(const dpar_mapping *mapping, int32_t rank, int32_t *coord)
{
    int32_t i, node, inside, volume = 1;
    for (i = 0; i < mapping->grid.dims; i++) {
        volume *= mapping->brick[i];
    }
    node = rank / volume;
    inside = rank % volume;
    for (i = 0; i < mapping->grid.dims; i++) {
        const int32_t d = mapping->order[i], q = mapping->brick[d], n = mapping->grid.parts[d] / q;
        coord[d] = node % n * q + inside % q;
        node /= n;
        inside /= q;
    }
}

/* A subcube on the way down a curve. For Hilbert's curve (C. Hamilton, "Compact Hilbert indices",
 * 2006) it has `entry`, the corner at which the curve enters, and `turn`, the axis along which it
 * leaves. */
typedef struct dpari_cart_curve {
    int32_t dims, hilbert, turn;
    uint32_t entry;
    int64_t half, low[DPAR_MAX_DIMS];
} dpari_cart_curve;

static dpari_cart_curve dpari_curve_start(const dpar_mapping *mapping)
{
    dpari_cart_curve c;
    int64_t side = 1;
    int32_t d;
    dpari_zero(&c, sizeof(c));
    for (d = 0; d < mapping->grid.dims; d++) {
        while (side < mapping->grid.parts[d]) {
            side *= 2;
        }
    }
    c.dims = mapping->grid.dims;
    c.hilbert = mapping->kind == DPAR_MAPPING_HILBERT;
    c.half = side / 2;
    return c;
}

/* Rotates the lowest `dims` bits to the left by `by` >= 0. */
static uint32_t dpari_curve_turn(const dpari_cart_curve *curve, uint32_t bits, int32_t by)
{
    by %= curve->dims;
    return (bits << by | bits >> (curve->dims - by)) & (((uint32_t)1 << curve->dims) - 1);
}

/* Returns the child that the curve visits as number w. Bit d is 1 if it is in the upper half along
 * axis d. */
static uint32_t dpari_curve_child(const dpari_cart_curve *curve, uint32_t w)
{
    return curve->hilbert ? dpari_curve_turn(curve, w ^ w >> 1, curve->turn + 1) ^ curve->entry : w;
}

/* Moves into child number w. */
static void dpari_curve_enter(dpari_cart_curve *curve, uint32_t w)
{
    const uint32_t child = dpari_curve_child(curve, w);
    uint32_t even = w > 0 ? (w - 1) & ~(uint32_t)1 : 0; /* 2 floor((w - 1) / 2) */
    uint32_t ones = w % 2 == 0 && w > 0 ? w - 1 : w;
    int32_t d, trailing = 0;
    for (d = 0; d < curve->dims; d++) {
        curve->low[d] += (child >> d & 1u) ? curve->half : 0;
    }
    for (; ones & 1u; ones >>= 1) {
        trailing++;
    }
    curve->entry ^= dpari_curve_turn(curve, even ^ even >> 1, curve->turn + 1);
    curve->turn = (curve->turn + trailing + 1) % curve->dims;
    curve->half /= 2;
}

/* Counts the ranks of the grid in child number w. */
static int32_t dpari_curve_count(const dpari_cart_curve *curve, const dpar_mapping *mapping,
                                 uint32_t w)
{
    const uint32_t child = dpari_curve_child(curve, w);
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < curve->dims; d++) {
        int64_t left =
            mapping->grid.parts[d] - curve->low[d] - ((child >> d & 1u) ? curve->half : 0);
        n *= dpari_most(0, dpari_least(left, curve->half));
    }
    return (int32_t)n;
}

static int32_t dpari_curve_rank(const dpar_mapping *mapping, const int32_t *coord)
{
    dpari_cart_curve c = dpari_curve_start(mapping);
    int32_t d, rank = 0;
    while (c.half > 0) {
        uint32_t want = 0, w;
        for (d = 0; d < c.dims; d++) {
            want |= (uint32_t)(coord[d] >= c.low[d] + c.half) << d;
        }
        for (w = 0; dpari_curve_child(&c, w) != want; w++) {
            rank += dpari_curve_count(&c, mapping, w);
        }
        dpari_curve_enter(&c, w);
    }
    return rank;
}

static void dpari_curve_coords(const dpar_mapping *mapping, int32_t rank, int32_t *coord)
{
    dpari_cart_curve c = dpari_curve_start(mapping);
    int32_t d;
    while (c.half > 0) {
        uint32_t w = 0;
        int32_t n = dpari_curve_count(&c, mapping, w);
        while (n <= rank) {
            rank -= n;
            n = dpari_curve_count(&c, mapping, ++w);
        }
        dpari_curve_enter(&c, w);
    }
    for (d = 0; d < c.dims; d++) {
        coord[d] = (int32_t)c.low[d];
    }
}

static int dpari_place_curved(const dpar_mapping *mapping)
{
    return mapping->kind == DPAR_MAPPING_MORTON || mapping->kind == DPAR_MAPPING_HILBERT;
}

DPAR_API int32_t dpar_mapping_rank(const dpar_mapping *mapping, const int32_t *coord)
{
    int32_t d;
    for (d = 0; d < mapping->grid.dims; d++) {
        if (coord[d] < 0 || coord[d] >= mapping->grid.parts[d]) {
            return DPAR_PROC_NULL;
        }
    }
    return dpari_place_curved(mapping) ? dpari_curve_rank(mapping, coord)
                                       : dpari_brick_rank(mapping, coord);
}

DPAR_API dpar_status dpar_mapping_coords(const dpar_mapping *mapping, int32_t rank, int32_t *coord)
{
    if (rank < 0 || rank >= mapping->grid.size) {
        return DPAR_E_ARG;
    }
    if (dpari_place_curved(mapping)) {
        dpari_curve_coords(mapping, rank, coord);
    } else {
        dpari_brick_coords(mapping, rank, coord);
    }
    return DPAR_OK;
}

/* Returns the weight of an offset, 0 if the stencil does not have it, or INT64_MAX if it overflows.
 */
static int64_t dpari_stencil_weight(const dpar_stencil *stencil, int32_t dims,
                                    const int32_t *offset, int32_t moves)
{
    int64_t w = stencil->bytes;
    int32_t d;
    if (moves == 0 || moves > dpari_stencil_axes(stencil->shape, dims)) {
        return 0;
    }
    if (w == 0) {
        return 1;
    }
    for (d = 0; d < dims; d++) {
        w = dpari_cart_times(w, offset[d] != 0 ? stencil->width[d] : stencil->block[d]);
    }
    return w;
}

static dpar_status dpari_stencil_check(const dpar_stencil *stencil, const dpar_cart *grid,
                                       dpar_why *why)
{
    int32_t offset[DPAR_MAX_DIMS], i, d;
    int64_t sum = 0;
    if (dpari_stencil_axes(stencil->shape, 1) == 0) {
        return dpari_wrong(why, "shape is %d, which is no DPAR_STENCIL_x", stencil->shape);
    }
    dpari_zero(offset, sizeof(offset));
    for (d = 0; d < grid->dims; d++) {
        if (stencil->block[d] < 0 || stencil->width[d] < 0 || stencil->bytes < 0) {
            return dpari_wrong(why, "axis %d: block %ld, width %ld or bytes %ld is negative", d,
                               stencil->block[d], stencil->width[d], stencil->bytes);
        }
    }
    for (i = 0; i < dpari_cart_three_to(grid->dims); i++) {
        int32_t moves = dpari_cart_offset(grid->dims, i, offset);
        int64_t w = dpari_stencil_weight(stencil, grid->dims, offset, moves);
        if (w > INT64_MAX / grid->size - sum) {
            return dpari_say(DPAR_E_RANGE, why,
                             "%d ranks send %ld bytes: the sum may exceed 2^63 - 1", grid->size, w);
        }
        sum += w;
    }
    return DPAR_OK;
}

/* For one axis of p parts in tiles of q, counts the pairs of an offset in the whole grid and inside
 * tiles, and those of the tile with the most neighbours, which is the second tile or the only one.
 */
typedef struct dpari_cart_pairs {
    int64_t all, same, tile, inside;
} dpari_cart_pairs;

static void dpari_cart_pairs_along(dpari_cart_pairs *at, int32_t p, int32_t q, int32_t offset,
                                   int wraps)
{
    const int32_t tiles = p / q;
    const int closed = wraps && tiles == 1; /* the tile is its own neighbour */
    const int border = !wraps && (offset < 0 ? tiles == 1 : tiles <= 2);
    if (offset == 0) {
        at->all *= p;
        at->same *= p;
        at->tile *= q;
        at->inside *= q;
    } else {
        at->all *= wraps ? p : p - 1;
        at->same *= closed ? p : tiles * (q - 1);
        at->tile *= border ? q - 1 : q;
        at->inside *= closed ? q : q - 1;
    }
}

/* Computes the cost of a mapping with equal bricks by counting pairs, without visiting the
 * ranks. */
static void dpari_place_cost_tiles(const dpar_mapping *mapping, const dpar_stencil *stencil,
                                   int64_t *total, int64_t *worst)
{
    int32_t offset[DPAR_MAX_DIMS], i, d;
    int64_t sum = 0, node = 0;
    for (i = 0; i < dpari_cart_three_to(mapping->grid.dims); i++) {
        int32_t moves = dpari_cart_offset(mapping->grid.dims, i, offset);
        int64_t w = dpari_stencil_weight(stencil, mapping->grid.dims, offset, moves);
        dpari_cart_pairs at = {1, 1, 1, 1};
        for (d = 0; d < mapping->grid.dims; d++) {
            dpari_cart_pairs_along(&at, mapping->grid.parts[d], mapping->brick[d], offset[d],
                                   mapping->grid.periodic >> d & 1u);
        }
        sum += w * (at.all - at.same);
        node += w * (at.tile - at.inside);
    }
    *total = sum / 2;
    *worst = node;
}

/* Computes how much a rank sends to other nodes. */
static int64_t dpari_place_sends(const dpar_mapping *mapping, const dpar_stencil *stencil,
                                 int32_t rank)
{
    int32_t coord[DPAR_MAX_DIMS], offset[DPAR_MAX_DIMS], next[DPAR_MAX_DIMS], i;
    int64_t sum = 0;
    dpar_mapping_coords(mapping, rank, coord);
    for (i = 0; i < dpari_cart_three_to(mapping->grid.dims); i++) {
        int32_t moves = dpari_cart_offset(mapping->grid.dims, i, offset);
        int64_t w = dpari_stencil_weight(stencil, mapping->grid.dims, offset, moves);
        if (w > 0 && dpari_cart_next(&mapping->grid, coord, offset, next) &&
            dpar_mapping_rank(mapping, next) / mapping->per_node != rank / mapping->per_node) {
            sum += w;
        }
    }
    return sum;
}

DPAR_API DPARI_COLD dpar_status dpar_mapping_cost(const dpar_mapping *mapping,
                                                  const dpar_stencil *stencil, int64_t *total,
                                                  int64_t *worst, dpar_why *why)
{
    int64_t sum = 0, node = 0, most = 0;
    int32_t rank, d, volume = 1;
    dpar_status st = dpari_stencil_check(stencil, &mapping->grid, why);
    if (st != DPAR_OK) {
        return st;
    }
    for (d = 0; d < mapping->grid.dims; d++) {
        volume *= mapping->brick[d];
    }
    if (volume == mapping->per_node && !dpari_place_curved(mapping)) {
        dpari_place_cost_tiles(mapping, stencil, total, worst);
        return DPAR_OK;
    }
    for (rank = 0; rank < mapping->grid.size; rank++) {
        int64_t sends = dpari_place_sends(mapping, stencil, rank);
        node = rank % mapping->per_node == 0 ? sends : node + sends;
        most = dpari_most(most, node);
        sum += sends;
    }
    *total = sum / 2;
    *worst = most;
    return DPAR_OK;
}

/* Computes how much each face of a rank carries. */
static void dpari_stencil_faces(const dpar_stencil *stencil, int32_t dims, int64_t *weight)
{
    int32_t d, e;
    for (d = 0; d < dims; d++) {
        weight[d] = stencil->bytes > 0 ? stencil->bytes : 1;
        for (e = 0; stencil->bytes > 0 && e < dims; e++) {
            weight[d] = dpari_cart_times(weight[d], e == d ? stencil->width[e] : stencil->block[e]);
        }
    }
}

/* Makes a mapping from arguments that have been checked, so that it fails only if no brick fits. */
static dpar_status dpari_place_try(dpar_mapping *mapping, const dpar_cart *grid, int32_t kind,
                                   int32_t per_node, const int64_t *weight)
{
    if (kind == DPAR_MAPPING_BRICKS) {
        return dpari_place_bricks(mapping, grid, per_node, weight, NULL);
    }
    dpari_place_start(mapping, grid, kind, per_node);
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_mapping_choose(dpar_mapping *mapping, const dpar_cart *grid,
                                                    int32_t ranks_per_node,
                                                    const dpar_stencil *stencil, dpar_why *why)
{
    int64_t weight[DPAR_MAX_DIMS], sum = 0, most = 0, least_sum = 0, least_most = -1;
    int32_t kind, best = 0;
    dpar_status st = dpari_stencil_check(stencil, grid, why);
    if (st == DPAR_OK) {
        st = dpari_place_check(DPAR_MAPPING_ROW_MAJOR, ranks_per_node, why);
    }
    if (st == DPAR_OK) {
        dpari_stencil_faces(stencil, grid->dims, weight);
    }
    for (kind = 0; st == DPAR_OK && kind < DPAR_MAPPING_COUNT; kind++) {
        if (dpari_place_try(mapping, grid, kind, ranks_per_node, weight) != DPAR_OK) {
            continue;
        }
        st = dpar_mapping_cost(mapping, stencil, &sum, &most, why);
        if (least_most < 0 || most < least_most || (most == least_most && sum < least_sum)) {
            best = kind;
            least_sum = sum;
            least_most = most;
        }
    }
    return st == DPAR_OK ? dpari_place_try(mapping, grid, best, ranks_per_node, weight) : st;
}
