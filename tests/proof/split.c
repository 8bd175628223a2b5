/* SPDX-License-Identifier: MIT-0 */
/* Contracts of src/index/split.c for Frama-C's WP (tests/compile/proof.sh): no call that meets the
 * requirements here computes anything undefined, at any size that dpar_split_init accepts.
 * split.acsl has the annotations inside the functions. README.md lists the assumptions. */
#include "dpar.h"

/* clang-format off */
#define MOST 0x4000000000000000 /* 2^62 */

/* Provers are weak at multiplication: an `assert hint(a, b, c)` (split.acsl) directs them to one
 * product. */
/*@ axiomatic hints {
  @     predicate hint(integer a, integer b, integer c) reads \nothing;
  @     axiom all: \forall integer a, b, c; hint(a, b, c);
  @ }
  @ lemma grows: \forall integer a, b, c; hint(a, b, c) ==> a <= b ==> 0 <= c ==> a * c <= b * c;
  @ lemma below: \forall integer n, d, p; hint(n, d, p) ==> 0 <= n ==> d >= 1 ==> n < p * d ==>
  @     0 <= n / d < p; */

/* What dpar_split_init and dpar_split_init_ragged ensure. */
/*@ predicate split_chunk(dpar_split *s) = s->rule == DPAR_SPLIT_CHUNK &&
  @     s->count <= s->parts * s->by[0] <= s->count + s->parts;
  @ predicate split_zigzag(dpar_split *s) = s->rule == DPAR_SPLIT_ZIGZAG &&
  @     s->count <= 2 * s->parts * s->by[0] <= s->count + 2 * s->parts;
  @ predicate split_rounds(dpar_split *s) = s->count == s->rounds * s->parts + s->extra &&
  @     0 <= s->extra < s->parts && 0 <= s->rounds;
  @ predicate split_even(dpar_split *s) = s->rule == DPAR_SPLIT_EVEN && split_rounds(s) &&
  @     s->by[0] == s->rounds + 1 && s->by[1] == (s->rounds > 0 ? s->rounds : 1);
  @ predicate split_floor(dpar_split *s) = s->rule == DPAR_SPLIT_FLOOR && split_rounds(s) &&
  @     s->by[0] == (s->count > 0 ? s->count : 1) && s->by[1] == s->parts &&
  @     (s->tail != 0 ==> s->count * s->parts <= INT64_MAX);
  @ predicate split_cyclic(dpar_split *s) = (s->rule == DPAR_SPLIT_BLOCK_CYCLIC || s->rule == DPAR_SPLIT_CYCLIC) &&
  @     s->block >= 1 && s->by[0] == s->block && s->by[1] == s->parts && 0 <= s->tail < s->block &&
  @     0 <= s->extra < s->parts && 0 <= s->rounds &&
  @     s->count == (s->rounds * s->parts + s->extra) * s->block + s->tail &&
  @     (s->rule == DPAR_SPLIT_CYCLIC ==> s->block == 1);
  @ predicate split_strided(dpar_split *s) = s->rule == DPAR_SPLIT_STRIDED &&
  @     s->by[0] <= s->parts * s->by[1] <= s->by[0] + s->parts && s->by[1] <= s->by[0] &&
  @     s->by[0] <= (s->count > 0 ? s->count : 1) &&
  @     s->count == s->rounds * s->by[0] + s->tail && 0 <= s->tail < s->by[0] && 0 <= s->rounds;
  @ predicate split_ragged(dpar_split *s) = s->rule == DPAR_SPLIT_RAGGED &&
  @     \valid_read(s->cuts + (0 .. s->parts)) && s->cuts[0] == 0 && s->cuts[s->parts] == s->count &&
  @     (\forall integer i, j; 0 <= i <= j <= s->parts ==> s->cuts[i] <= s->cuts[j]);
  @ predicate split_ok(dpar_split *s) = \valid_read(s) && 1 <= s->parts && 0 <= s->count <= MOST &&
  @     0 <= s->source < s->parts && (s->rule != DPAR_SPLIT_RAGGED ==> s->by[0] >= 1) &&
  @     (s->rule != DPAR_SPLIT_RAGGED && s->rule != DPAR_SPLIT_CHUNK && s->rule != DPAR_SPLIT_ZIGZAG ==> s->by[1] >= 1) &&
  @     (s->rule == DPAR_SPLIT_RAGGED ==> split_ragged(s)) &&
  @     (split_chunk(s) || split_zigzag(s) || split_even(s) || split_floor(s) || split_cyclic(s) ||
  @      split_strided(s) || split_ragged(s));
  @ predicate split_cuts(dpar_split *s) = s->rule == DPAR_SPLIT_CHUNK || s->rule == DPAR_SPLIT_EVEN ||
  @     s->rule == DPAR_SPLIT_FLOOR || s->rule == DPAR_SPLIT_RAGGED;
  @*/

/* ---- of base ---- */

/*@ assigns \nothing; ensures \result == (a < b ? a : b); */
static int64_t dpari_least(int64_t a, int64_t b);
/*@ assigns \nothing; ensures \result == (a > b ? a : b); */
static int64_t dpari_most(int64_t a, int64_t b);
/*@ requires a >= 0 && b >= 1; requires a <= MOST;
  @ assigns \nothing; ensures \result == a / b + (a % b != 0 ? 1 : 0); ensures 0 <= \result <= a;
  @ ensures a <= \result * b <= a + b - 1; */
static int64_t dpari_ceil_div(int64_t a, int64_t b);

/* ---- division by a constant: assumed, README.md ---- */

/*@ requires split_ok(s) && (k == 0 || k == 1) && s->rule != DPAR_SPLIT_RAGGED && s->by[k] >= 1 && n >= 0;
  @ requires \valid(rest) && \separated(rest, s);
  @ assigns *rest;
  @ ensures \result == n / s->by[k]; ensures *rest == n % s->by[k];
  @ ensures n == \result * s->by[k] + *rest; ensures 0 <= *rest < s->by[k]; ensures 0 <= \result <= n; */
static int64_t dpari_split_div(const dpar_split *s, int k, int64_t n, int64_t *rest);

/* ---- contiguous rules ---- */

/*@ requires split_ok(s) && split_cuts(s) && 0 <= p <= s->parts;
  @ assigns \nothing;
  @ ensures 0 <= \result <= s->count; ensures p == 0 ==> \result == 0;
  @ ensures p == s->parts ==> \result == s->count; */
static int64_t dpari_split_cut(const dpar_split *s, int64_t p);

/*@ requires split_ok(s) && split_cuts(s) && 0 <= i < s->count;
  @ assigns \nothing; ensures 0 <= \result < s->parts; */
static int32_t dpari_split_search(const dpar_split *s, int64_t i);

/*@ requires split_ok(s) && split_even(s) && 0 <= i < s->count;
  @ assigns \nothing; ensures 0 <= \result < s->parts; */
static int64_t dpari_even_part(const dpar_split *s, int64_t i);

/*@ requires split_ok(s) && split_floor(s) && 0 <= i < s->count;
  @ assigns \nothing; ensures 0 <= \result < s->parts; */
static int64_t dpari_floor_part(const dpar_split *s, int64_t i);

/* ---- scattered rules ---- */

/*@ requires split_ok(s) && split_cyclic(s) && 0 <= i < s->count && \valid(local) && \separated(local, s);
  @ assigns *local; ensures 0 <= \result < s->parts; ensures 0 <= *local <= i; */
static int64_t dpari_cyclic_find(const dpar_split *s, int64_t i, int64_t *local);

/*@ requires split_ok(s) && 0 <= part < s->parts; assigns \nothing; ensures 0 <= \result < s->parts; */
static int64_t dpari_cyclic_turn(const dpar_split *s, int64_t part);

/*@ requires split_ok(s) && split_cyclic(s) && 0 <= turn < s->parts; assigns \nothing;
  @ ensures \result == (turn < s->extra ? s->block : turn == s->extra ? s->tail : 0); */
static int64_t dpari_cyclic_last(const dpar_split *s, int64_t turn);

/*@ requires split_ok(s) && split_cyclic(s) && 0 <= part < s->parts && 0 <= local; assigns \nothing;
  @ ensures -1 <= \result < s->count; ensures \result >= 0 ==> local <= s->count; */
static int64_t dpari_cyclic_global(const dpar_split *s, int64_t part, int64_t local);

/*@ logic integer full(dpar_split *s, integer p) =
  @     p * s->by[1] >= s->by[0] ? 0
  @     : s->by[1] < s->by[0] - p * s->by[1] ? s->by[1] : s->by[0] - p * s->by[1]; */
/*@ requires split_ok(s) && split_strided(s) && 0 <= p < s->parts; assigns \nothing;
  @ ensures \result == full(s, p); ensures 0 <= \result <= s->by[1];
  @ ensures \result > 0 ==> p * s->by[1] + \result <= s->by[0];
  @ ensures \result < s->by[1] && \result > 0 ==> p * s->by[1] + \result == s->by[0]; */
static int64_t dpari_strided_full(const dpar_split *s, int64_t p);

/*@ requires split_ok(s) && split_strided(s) && 0 <= p < s->parts && \valid(offset) && \separated(offset, s);
  @ assigns *offset; ensures 0 <= *offset <= s->tail; ensures 0 <= \result <= s->tail - *offset; */
static int64_t dpari_strided_last(const dpar_split *s, int64_t p, int64_t *offset);

/*@ requires split_ok(s) && split_strided(s) && 0 <= i < s->count && \valid(local) && \separated(local, s);
  @ assigns *local; ensures 0 <= \result < s->parts; ensures -s->count <= *local <= s->count; */
static int64_t dpari_strided_find(const dpar_split *s, int64_t i, int64_t *local);

/*@ requires split_ok(s) && split_strided(s) && 0 <= part < s->parts && 0 <= local; assigns \nothing;
  @ ensures -1 <= \result < s->count; */
static int64_t dpari_strided_global(const dpar_split *s, int64_t part, int64_t local);

/*@ logic integer zigzag(dpar_split *s, integer c) = c * s->by[0] < s->count ? c * s->by[0] : s->count; */
/*@ requires split_ok(s) && split_zigzag(s) && 0 <= c <= 2 * s->parts; assigns \nothing;
  @ ensures \result == zigzag(s, c); ensures 0 <= \result <= s->count; */
static int64_t dpari_zigzag_cut(const dpar_split *s, int64_t c);

/*@ requires split_ok(s) && split_zigzag(s) && 0 <= part < 2 * s->parts; assigns \nothing;
  @ ensures \result == zigzag(s, part + 1) - zigzag(s, part);
  @ ensures 0 <= \result <= s->by[0]; ensures \result <= s->count; */
static int64_t dpari_zigzag_first(const dpar_split *s, int64_t part);

/*@ requires split_ok(s) && split_zigzag(s) && 0 <= part < s->parts; assigns \nothing;
  @ ensures \result == zigzag(s, 2 * s->parts - part) - zigzag(s, 2 * s->parts - 1 - part);
  @ ensures 0 <= \result <= s->by[0]; ensures \result <= s->count; */
static int64_t dpari_zigzag_second(const dpar_split *s, int64_t part);

/*@ requires split_ok(s) && split_zigzag(s) && 0 <= i < s->count && \valid(local) && \separated(local, s);
  @ assigns *local; ensures 0 <= \result < s->parts; ensures 0 <= *local <= s->count; */
static int64_t dpari_zigzag_find(const dpar_split *s, int64_t i, int64_t *local);

/*@ requires split_ok(s) && split_zigzag(s) && 0 <= part < s->parts && 0 <= local; assigns \nothing;
  @ ensures -1 <= \result < s->count; ensures \result >= 0 ==> local <= s->count; */
static int64_t dpari_zigzag_global(const dpar_split *s, int64_t part, int64_t local);

/* ---- any rule ---- */

/*@ requires split_ok(s); assigns \nothing; ensures \result != 0 <==> 0 <= part < s->parts; */
static int dpari_split_has(const dpar_split *s, int32_t part);

/*@ requires split_ok(s) && 0 <= i < s->count && \valid(local) && \separated(local, s);
  @ requires s->rule == DPAR_SPLIT_RAGGED ==> \separated(local, s->cuts + (0 .. s->parts));
  @ assigns *local; ensures 0 <= \result < s->parts; ensures -s->count <= *local <= s->count;
  @ ensures split_cyclic(s) || split_zigzag(s) ==> 0 <= *local; */
static int32_t dpari_split_find(const dpar_split *s, int64_t i, int64_t *local);

/*@ requires split_ok(s) && 0 <= part < s->parts && 0 <= local; assigns \nothing;
  @ ensures -1 <= \result < s->count;
  @ ensures \result >= 0 && (split_cyclic(s) || split_zigzag(s)) ==> local <= s->count; */
static int64_t dpari_split_global(const dpar_split *s, int32_t part, int64_t local);

/*@ requires split_ok(s) && 0 <= part < s->parts && 0 <= i < s->count;
  @ requires split_cyclic(s) || split_zigzag(s) ==> 0 <= local <= s->count;
  @ assigns \nothing; */
static int64_t dpari_split_run(const dpar_split *s, int32_t part, int64_t i, int64_t local);

/*@ requires split_ok(s); assigns \nothing; */
static int64_t dpar_split_part_count(const dpar_split *s, int32_t part);

/*@ requires n >= 0 && parts >= 1 && 0 <= i < n; assigns \nothing; */
static int32_t dpari_even_of(int64_t n, int32_t parts, int64_t i);

/*@ requires split_ok(s); assigns \nothing; ensures 0 <= \result <= s->count; */
static int64_t dpar_split_part_first(const dpar_split *s, int32_t part);

/*@ predicate out(dpar_split *s, int64_t *p) = \valid(p) && \separated(p, s) &&
  @     (s->rule == DPAR_SPLIT_RAGGED ==> \separated(p, s->cuts + (0 .. s->parts)));
  @*/
/*@ requires split_ok(s) && out(s, run) && (local == \null || out(s, local) && \separated(run, local));
  @ assigns *run, *local; ensures -1 <= \result < s->parts; */
static int32_t dpari_split_find_run(const dpar_split *s, int64_t i, int64_t *local, int64_t *run);

/*@ requires split_ok(s) && (local == \null || out(s, local)) && (run == \null || out(s, run));
  @ requires run == \null || local == \null || \separated(run, local);
  @ assigns *run, *local; ensures -1 <= \result < s->parts; */
static int32_t dpar_split_locate(const dpar_split *s, int64_t i, int64_t *local, int64_t *run);

/*@ requires split_ok(s) && (run == \null || out(s, run));
  @ assigns *run; ensures -1 <= \result < s->count; */
static int64_t dpar_split_global(const dpar_split *s, int32_t part, int64_t local, int64_t *run);

/*@ requires 0 <= i && 0 <= start; assigns \nothing;
  @ ensures \result == (i <= start ? 0 : i - start < length ? i - start : length); */
static int64_t dpari_split_past(int64_t i, int64_t start, int64_t length);

/*@ requires split_ok(s); assigns \nothing; */
static int64_t dpari_split_before(const dpar_split *s, int32_t part, int64_t i);

/* ---- making: dpari_split_by and what it calls have by.c ---- */

/*@ requires \valid(s) && (k == 0 || k == 1); assigns s->by[k], s->inverse[k], s->shift[k];
  @ ensures s->by[k] == (divisor > 0 ? divisor : 1); */
static void dpari_split_by(dpar_split *s, int k, int64_t divisor);

/*@ predicate split_begun(dpar_split *s) = \valid(s) && 1 <= s->parts && 0 <= s->source < s->parts &&
  @     DPAR_SPLIT_CHUNK <= s->rule <= DPAR_SPLIT_CYCLIC && (s->rule == DPAR_SPLIT_CYCLIC ==> s->block == 1) &&
  @     (s->rule == DPAR_SPLIT_BLOCK_CYCLIC || s->rule == DPAR_SPLIT_STRIDED ==> s->block >= 1);
  @*/
/*@ requires split_begun(s) && s->rule != DPAR_SPLIT_RAGGED && 0 <= count <= MOST;
  @ assigns s->count, s->rounds, s->extra, s->tail, s->by[0 .. 1], s->inverse[0 .. 1], s->shift[0 .. 1];
  @ ensures s->count == count && s->rule == \old(s->rule) && s->parts == \old(s->parts);
  @ ensures 1 <= s->parts && 0 <= s->count <= MOST && 0 <= s->source < s->parts; ensures s->by[0] >= 1;
  @ ensures s->rule != DPAR_SPLIT_CHUNK && s->rule != DPAR_SPLIT_ZIGZAG ==> s->by[1] >= 1;
  @ ensures s->rule == DPAR_SPLIT_CHUNK ==> split_chunk(s); ensures s->rule == DPAR_SPLIT_ZIGZAG ==> split_zigzag(s);
  @ ensures s->rule == DPAR_SPLIT_EVEN ==> split_even(s); ensures s->rule == DPAR_SPLIT_FLOOR ==> split_floor(s);
  @ ensures s->rule == DPAR_SPLIT_BLOCK_CYCLIC || s->rule == DPAR_SPLIT_CYCLIC ==> split_cyclic(s);
  @ ensures s->rule == DPAR_SPLIT_STRIDED ==> split_strided(s); */
static void dpari_split_resize(dpar_split *s, int64_t count);

/* Assumed: a message is written to *why and nowhere else. */
/*@ assigns *why; ensures \result == status; */
static dpar_status dpari_say(dpar_status status, dpar_why *why, const char *form, ...);

/*@ assigns *why; ensures \result == DPAR_E_ARG; */
static dpar_status dpari_wrong(dpar_why *why, const char *form, ...);

/*@ assigns *why; ensures \result == DPAR_OK <==> parts >= 1 && 0 <= count <= MOST; */
static dpar_status dpari_split_check(int64_t count, int32_t parts, dpar_why *why);

/*@ requires \valid(s) && \separated(s, why);
  @ assigns *s, *why; ensures \result == DPAR_OK ==> split_ok(s) && s->parts == parts && s->count == count &&
  @     s->rule == rule && rule != DPAR_SPLIT_RAGGED; */
static dpar_status dpar_split_init(dpar_split *s, int32_t rule, int64_t count, int32_t parts,
                                   int64_t block, dpar_why *why);

/*@ assigns \nothing; ensures -1 <= \result; */
static int32_t dpar_split_owner(int32_t rule, int64_t count, int32_t parts, int64_t i);

#define DPAR_IMPLEMENTATION
#include "dpar.h"
