/* SPDX-License-Identifier: MIT-0 */
/* Makes the published schedules. With most rules a rank alternates between F and backward; these
 * rules differ in how many F a rank runs first and in the order of micro-batches. Each other rule
 * has a section. The three rules on a V with controlled memory are in vshape.c. A description is
 * first checked, then filled with its defaults (dpari_plan), then written rank by rank. */
#include "generate.h"

#include "../base/arith.h"
#include "action.h"
#include "needed_bytes.h"
#include "order.h"
#include "vshape.h"

/* ---- names ----------------------------------------------------------------------------------- */

DPAR_API const char *dpar_schedule_name(int32_t rule)
{
    static const char names[] = "?\0gpipe\0" /* in the order of DPAR_SCHEDULE_x */
                                "1f1b\0interleaved\0breadth-first\0zb-h1\0zb-2p\0zbv\0"
                                "v-half\0v-min\0dualpipe\0dualpipev\0eager-1f1b\0"
                                "interleaved-zb\0"
                                "1f1b-v\0moe-overlap\0seq1f1b\0chimera\0forward-only";
    return dpari_nth_text(names, rule > 0 && rule < DPAR_SCHEDULE_END ? rule : 0);
}

/* Returns the next character of a name in lower case and moves *at past it. Skips '-' and '_'.
 * Returns 0 at the end. */
static char dpari_name_next(const char *name, size_t *at)
{
    char c = name[*at];
    while (c == '-' || c == '_') {
        c = name[++*at];
    }
    *at += c != 0;
    return dpari_lower(c);
}

/* True if both names are equal apart from case, '-' and '_'. */
static int dpari_name_same(const char *a, const char *b)
{
    size_t i = 0, j = 0;
    char c;
    do {
        c = dpari_name_next(a, &i);
        if (c != dpari_name_next(b, &j)) {
            return 0;
        }
    } while (c != 0);
    return 1;
}

/* Returns the part of a name after the prefix `head`, or the whole name if it has no such prefix.
 */
static const char *dpari_name_past(const char *name, const char *head)
{
    size_t i = 0, j = 0;
    char c;
    while ((c = dpari_name_next(head, &j)) != 0) {
        if (dpari_name_next(name, &i) != c) {
            return name;
        }
    }
    return name + i;
}

DPAR_API DPARI_COLD dpar_status dpar_schedule_find(dpar_schedule_desc *desc, const char *name,
                                                   dpar_why *why)
{
    static const char others[] = "gpipe-lifo\0interleaved-1f1b\0flexible-interleaved-1f1b\0bfs\0"
                                 "looped-bfs\0zb-1p\0zb-h2\0zbv-zero-bubble\0eager\0izb\0"
                                 "interleaved-zero-bubble\0v1f1b\0overlap-1f1b\0inference";
    static const uint8_t other_rule[] = {DPAR_SCHEDULE_GPIPE,          DPAR_SCHEDULE_INTERLEAVED,
                                         DPAR_SCHEDULE_INTERLEAVED,    DPAR_SCHEDULE_BREADTH_FIRST,
                                         DPAR_SCHEDULE_BREADTH_FIRST,  DPAR_SCHEDULE_ZB_H1,
                                         DPAR_SCHEDULE_ZB_2P,          DPAR_SCHEDULE_ZBV,
                                         DPAR_SCHEDULE_EAGER_1F1B,     DPAR_SCHEDULE_INTERLEAVED_ZB,
                                         DPAR_SCHEDULE_INTERLEAVED_ZB, DPAR_SCHEDULE_1F1B_V,
                                         DPAR_SCHEDULE_MOE_OVERLAP,    DPAR_SCHEDULE_FORWARD_ONLY};
    const char *bare = dpari_name_past(name, "schedule");
    int32_t i;
    for (i = 1; i < DPAR_SCHEDULE_END; i++) {
        if (dpari_name_same(bare, dpar_schedule_name(i))) {
            desc->rule = i;
            desc->lifo = 0;
            return DPAR_OK;
        }
    }
    for (i = 0; i < (int32_t)sizeof other_rule; i++) {
        if (dpari_name_same(bare, dpari_nth_text(others, i))) {
            desc->rule = other_rule[i];
            desc->lifo = i == 0; /* gpipe-lifo */
            return DPAR_OK;
        }
    }
    return dpari_say(DPAR_E_UNKNOWN, why,
                     "no schedule '%.*s': gpipe, gpipe-lifo, 1f1b, eager-1f1b, interleaved, "
                     "breadth-first, zb-h1, zb-2p, interleaved-zb, zbv, v-half, v-min, 1f1b-v, "
                     "dualpipe, dualpipev, moe-overlap, seq1f1b, chimera, forward-only",
                     (int32_t)24, name);
}

/* ---- properties of rules --------------------------------------------------------------------- */

/* True if the caller may choose the number of stages per rank. */
static int dpari_order_loops(int32_t rule)
{
    return rule == DPAR_SCHEDULE_INTERLEAVED || rule == DPAR_SCHEDULE_BREADTH_FIRST ||
           rule == DPAR_SCHEDULE_INTERLEAVED_ZB || rule == DPAR_SCHEDULE_MOE_OVERLAP ||
           rule == DPAR_SCHEDULE_FORWARD_ONLY;
}

/* True if the rule runs micro-batches in groups. */
static int dpari_order_groups(int32_t rule)
{
    return rule == DPAR_SCHEDULE_INTERLEAVED || rule == DPAR_SCHEDULE_INTERLEAVED_ZB ||
           rule == DPAR_SCHEDULE_MOE_OVERLAP;
}

/* True if a stage runs all its micro-batches without a break, so that any map of stages works. */
static int dpari_order_sweeps(int32_t rule)
{
    return rule == DPAR_SCHEDULE_GPIPE || rule == DPAR_SCHEDULE_BREADTH_FIRST ||
           rule == DPAR_SCHEDULE_FORWARD_ONLY;
}

/* True if the rule runs two pipelines in opposite directions. */
static int dpari_order_both_ways(int32_t rule)
{
    return rule == DPAR_SCHEDULE_DUALPIPE || rule == DPAR_SCHEDULE_CHIMERA;
}

/* True if the rule runs on a V: stage s and stage 2p-1-s are on the same rank. */
static int dpari_order_folded(int32_t rule)
{
    return rule == DPAR_SCHEDULE_ZBV || rule == DPAR_SCHEDULE_V_HALF ||
           rule == DPAR_SCHEDULE_V_MIN || rule == DPAR_SCHEDULE_DUALPIPEV ||
           rule == DPAR_SCHEDULE_1F1B_V;
}

static int32_t dpari_order_map(int32_t rule)
{
    if (dpari_order_both_ways(rule)) {
        return DPAR_STAGE_MAP_BIDIRECTIONAL;
    }
    return dpari_order_folded(rule) ? DPAR_STAGE_MAP_V : DPAR_STAGE_MAP_LOOP;
}

DPARI_INTERNAL int32_t dpari_order_chunks(const dpar_schedule_desc *order)
{
    int two = dpari_order_map(order->rule) != DPAR_STAGE_MAP_LOOP ||
              order->rule == DPAR_SCHEDULE_INTERLEAVED ||
              order->rule == DPAR_SCHEDULE_BREADTH_FIRST ||
              order->rule == DPAR_SCHEDULE_INTERLEAVED_ZB;
    return order->chunks > 0 ? order->chunks : 1 + two;
}

DPARI_INTERNAL int32_t dpari_order_slices(const dpar_schedule_desc *order)
{
    if (order->rule != DPAR_SCHEDULE_SEQ1F1B) {
        return 1;
    }
    return order->slices > 0 ? order->slices : 2;
}

static int32_t dpari_order_rank(const dpar_schedule_desc *desc, int32_t stage)
{
    return desc->rank_of != NULL
               ? desc->rank_of[stage]
               : dpari_stage_rank(dpari_order_map(desc->rule), desc->ranks, stage);
}

/* A description with its defaults filled in, for p ranks, v stages per rank and m micro-batches. If
 * micro-batches are sliced, m counts slices. */
typedef struct dpari_plan {
    int32_t rule, p, v, m;
    int32_t stages, slices, lifo;
    int32_t size, wide; /* the first `wide` groups have size + 1 micro-batches, the others size */
} dpari_plan;

/* Sets the sizes of the groups as dpar_schedule_desc.group describes. A last group with fewer than
 * p micro-batches is shared among the full groups. */
static void dpari_plan_groups(dpari_plan *plan, int32_t group)
{
    int32_t n = group > 0 ? group : plan->p;
    plan->size = n < plan->m ? n : plan->m;
    plan->wide = 0;
    if (n < plan->m && plan->m % n < plan->p) {
        plan->size = plan->m / (plan->m / n);
        plan->wide = plan->m % (plan->m / n);
    }
}

static dpari_plan dpari_plan_of(const dpar_schedule_desc *desc)
{
    dpari_plan k;
    k.rule = desc->rule;
    k.p = desc->ranks;
    k.v = dpari_order_chunks(desc);
    k.stages = desc->stages > 0 ? desc->stages : k.p * k.v;
    k.slices = dpari_order_slices(desc);
    k.m = desc->micro_batches * k.slices;
    k.lifo = desc->lifo || desc->rule == DPAR_SCHEDULE_BREADTH_FIRST;
    dpari_plan_groups(&k, dpari_order_groups(desc->rule) ? desc->group : k.m);
    return k;
}

/* ---- checks of an order ---------------------------------------------------------------------- */

static dpar_status dpari_order_numbers(const dpar_schedule_desc *desc, dpar_why *why)
{
    const char *name = dpar_schedule_name(desc->rule);
    if (desc->rule == 0) {
        return dpari_wrong(why, "rule is 0; set it, for example to DPAR_SCHEDULE_1F1B");
    }
    if (desc->rule < 0 || desc->rule >= DPAR_SCHEDULE_END) {
        return dpari_wrong(why, "rule %d does not exist; rules are 1 to %d", desc->rule,
                           (int32_t)DPAR_SCHEDULE_END - 1);
    }
    if (desc->ranks < 1 || desc->ranks > DPAR_MAX_STAGES) {
        return dpari_wrong(why, "ranks=%d; 1 to %d are allowed", desc->ranks,
                           (int32_t)DPAR_MAX_STAGES);
    }
    if (desc->micro_batches < 1 || desc->micro_batches > DPAR_MAX_MICRO_BATCHES) {
        return dpari_wrong(why, "micro_batches=%d; 1 to %d are allowed", desc->micro_batches,
                           (int32_t)DPAR_MAX_MICRO_BATCHES);
    }
    if (desc->slices < 0 || (desc->slices > 1 && desc->rule != DPAR_SCHEDULE_SEQ1F1B)) {
        return dpari_wrong(why,
                           "slices=%d; seq1f1b allows 1 or more, the other rules have no slices",
                           desc->slices);
    }
    if (desc->lifo < 0 || desc->lifo > (desc->rule == DPAR_SCHEDULE_GPIPE)) {
        return dpari_wrong(why, "lifo=%d; gpipe allows 0 or 1, the other rules only 0", desc->lifo);
    }
    if (desc->group != 0 && !dpari_order_groups(desc->rule)) {
        return dpari_wrong(why, "group=%d, but %s has no groups of micro-batches; leave it 0",
                           desc->group, name);
    }
    if (desc->group != 0 && desc->group < desc->ranks) {
        return dpari_wrong(why, "group=%d; a group needs at least one micro-batch per rank, %d",
                           desc->group, desc->ranks);
    }
    return DPAR_OK;
}

static dpar_status dpari_order_shape(const dpar_schedule_desc *desc, dpar_why *why)
{
    const char *name = dpar_schedule_name(desc->rule);
    int32_t own = dpari_order_map(desc->rule) == DPAR_STAGE_MAP_LOOP ? 1 : 2;
    int64_t chunks = dpari_order_chunks(desc), slices = dpari_order_slices(desc);
    if (desc->chunks < 0 ||
        (desc->chunks > 0 && desc->chunks != own && !dpari_order_loops(desc->rule))) {
        return dpari_wrong(why, "chunks=%d; %s allows %d%s per rank", desc->chunks, name, own,
                           dpari_order_loops(desc->rule) ? " or more" : "");
    }
    if (chunks * desc->ranks > DPAR_MAX_STAGES) {
        return dpari_say(DPAR_E_RANGE, why,
                         "ranks=%d x chunks=%ld are %ld stages; at most %d are allowed",
                         desc->ranks, chunks, chunks * desc->ranks, (int32_t)DPAR_MAX_STAGES);
    }
    if (desc->stages != 0 &&
        (desc->stages < 0 || desc->stages > DPAR_MAX_STAGES || desc->chunks > 0 ||
         desc->rank_of == NULL || !dpari_order_sweeps(desc->rule) ||
         desc->rule == DPAR_SCHEDULE_GPIPE)) {
        return dpari_wrong(
            why,
            "stages=%d; only breadth-first and forward-only allow it, up to %d, with rank_of and "
            "without chunks",
            desc->stages, (int32_t)DPAR_MAX_STAGES);
    }
    if (slices * desc->micro_batches > DPAR_MAX_MICRO_BATCHES) {
        return dpari_say(DPAR_E_RANGE, why,
                         "micro_batches=%d x slices=%ld are %ld; at most %d are allowed",
                         desc->micro_batches, slices, slices * desc->micro_batches,
                         (int32_t)DPAR_MAX_MICRO_BATCHES);
    }
    if (dpari_order_both_ways(desc->rule) && desc->ranks % 2 != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "%s needs an even number of ranks, not %d", name,
                         desc->ranks);
    }
    if (desc->rule == DPAR_SCHEDULE_DUALPIPE && desc->micro_batches % 2 != 0) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "dualpipe needs an even number of micro-batches, not %d",
                         desc->micro_batches);
    }
    if ((desc->rule == DPAR_SCHEDULE_DUALPIPE || desc->rule == DPAR_SCHEDULE_DUALPIPEV) &&
        desc->micro_batches / 2 < desc->ranks) {
        return dpari_wrong(why, "%s on %d ranks needs at least %ld micro-batches, not %d", name,
                           desc->ranks, 2 * (int64_t)desc->ranks, desc->micro_batches);
    }
    return DPAR_OK;
}

/* Checks that rank_of only renumbers the ranks of the rule. Checks 1024 ranks at a time, because
 * marks for 65535 ranks would take too much stack. */
static dpar_status dpari_order_ranks(const dpar_schedule_desc *desc, dpar_why *why)
{
    enum { WINDOW = 1024 };
    dpari_plan k = dpari_plan_of(desc);
    uint8_t taken[WINDOW / 8];
    int32_t base, i, rule_rank;
    for (i = 0; i < k.stages; i++) {
        rule_rank = dpari_stage_rank(dpari_order_map(k.rule), k.p, i);
        if (desc->rank_of[i] >= k.p) {
            return dpari_wrong(why, "rank_of[%d] is %d, but there are only %d ranks", i,
                               (int32_t)desc->rank_of[i], k.p);
        }
        if (!dpari_order_sweeps(k.rule) && desc->rank_of[i] != desc->rank_of[rule_rank]) {
            return dpari_wrong(
                why,
                "rank_of puts stage %d on rank %d; the rule needs it with stage %d, on rank %d", i,
                (int32_t)desc->rank_of[i], rule_rank, (int32_t)desc->rank_of[rule_rank]);
        }
    }
    for (base = 0; base < k.p && !dpari_order_sweeps(k.rule); base += WINDOW) {
        dpari_zero(taken, sizeof(taken));
        for (i = 0; i < k.p; i++) {
            int32_t at = (int32_t)desc->rank_of[i] - base;
            if (at < 0 || at >= WINDOW) {
                continue;
            }
            if (taken[at / 8] >> (at % 8) & 1) {
                return dpari_wrong(why, "rank_of gives rank %d the stages of two ranks of the rule",
                                   (int32_t)desc->rank_of[i]);
            }
            taken[at / 8] = (uint8_t)(taken[at / 8] | 1 << (at % 8));
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_order_check(const dpar_schedule_desc *order,
                                                        dpar_why *why)
{
    dpar_status st = dpari_order_numbers(order, why);
    if (st == DPAR_OK) {
        st = dpari_order_shape(order, why);
    }
    return st == DPAR_OK && order->rank_of != NULL ? dpari_order_ranks(order, why) : st;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Counts the actions of a stage. All W of the backwards that DualPipe and DualPipeV split are
 * counted with the first stage of their rank. */
static int64_t dpari_plan_count(const dpari_plan *plan, int32_t stage)
{
    int32_t behind = plan->p - 1 - stage;
    int64_t m = plan->m;
    switch (plan->rule) {
    case DPAR_SCHEDULE_FORWARD_ONLY:
    case DPAR_SCHEDULE_CHIMERA: return m; /* F and B of the half that runs in this direction */
    case DPAR_SCHEDULE_ZB_H1:
    case DPAR_SCHEDULE_ZB_2P:
    case DPAR_SCHEDULE_INTERLEAVED_ZB:
    case DPAR_SCHEDULE_ZBV:
    case DPAR_SCHEDULE_V_HALF:
    case DPAR_SCHEDULE_V_MIN: return 3 * m;
    case DPAR_SCHEDULE_DUALPIPEV: return 2 * m + (behind >= 0 ? plan->p + behind : 0);
    case DPAR_SCHEDULE_DUALPIPE: return m + (behind >= 0 ? dpari_most(stage, behind) : 0);
    default: return 2 * m;
    }
}

/* Computes the bytes of the schedule itself and the number of its actions. */
static int64_t dpari_plan_bytes(const dpari_plan *plan, int64_t *actions)
{
    int32_t i;
    *actions = 0;
    for (i = 0; i < plan->stages; i++) {
        *actions += dpari_plan_count(plan, i);
    }
    return dpari_schedule_bytes(plan->p, plan->stages, *actions);
}

/* True if vshape.c makes the schedule, which needs working memory. */
static int dpari_plan_works(const dpari_plan *plan)
{
    return plan->rule == DPAR_SCHEDULE_V_HALF || plan->rule == DPAR_SCHEDULE_V_MIN ||
           plan->rule == DPAR_SCHEDULE_1F1B_V;
}

DPARI_API int64_t dpari_schedule_generate_bytes(const dpar_schedule_desc *order, dpar_why *why)
{
    dpari_plan k;
    int64_t actions, bytes;
    if (dpari_order_check(order, why) != DPAR_OK) {
        return -1;
    }
    k = dpari_plan_of(order);
    bytes = dpari_plan_bytes(&k, &actions);
    return dpari_plan_works(&k) ? bytes + dpari_whole_words(dpari_v_work(k.p, k.m)) : bytes;
}

/* ---- writing a rank's list ------------------------------------------------------------------- */

/* The place in a rank's list where the next action is written. */
typedef struct dpari_pen {
    dpar_action *at;
    const dpar_action *input; /* at or before the first I that has no W yet */
} dpari_pen;

DPARI_STATIC_NOINLINE void dpari_pen_put(dpari_pen *pen, int kind, int32_t stage, int32_t micro)
{
    *pen->at++ = dpari_action_of(kind, stage, micro);
}

/* Appends the W of the oldest I that has no W yet. */
static void dpari_pen_weight(dpari_pen *pen)
{
    while (pen->input->kind != DPAR_ACTION_INPUT) {
        pen->input++;
    }
    dpari_pen_put(pen, DPAR_ACTION_WEIGHT, pen->input->stage, pen->input->micro_batch);
    pen->input++;
}

/* ---- the rules that alternate between F and backward ----------------------------------------- */

/* A position in the order of micro-batches: each group passes chunk 0, then chunk 1, and so on,
 * before the next group starts. */
typedef struct dpari_turn {
    int32_t first, size; /* the group's first micro-batch and number of micro-batches */
    int32_t chunk, at;   /* the current chunk and micro-batch of the group */
    int32_t wide;        /* later groups that have one micro-batch more than the others */
} dpari_turn;

static void dpari_turn_group(dpari_turn *t, const dpari_plan *plan, int32_t first)
{
    int32_t left = plan->m - first;
    t->first = first;
    t->size = plan->size + (t->wide > 0);
    t->size = t->size < left ? t->size : left;
    t->wide -= t->wide > 0;
}

static void dpari_turn_start(dpari_turn *t, const dpari_plan *plan)
{
    t->chunk = 0;
    t->at = 0;
    t->wide = plan->wide;
    dpari_turn_group(t, plan, 0);
}

static void dpari_turn_next(dpari_turn *t, const dpari_plan *plan)
{
    if (++t->at == t->size) {
        t->at = 0;
        if (++t->chunk == plan->v) {
            t->chunk = 0;
            dpari_turn_group(t, plan, t->first + t->size);
        }
    }
}

/* Returns the number of F that a rank runs before its first backward. */
static int64_t dpari_plan_ahead(const dpari_plan *plan, int32_t rank)
{
    int64_t behind = plan->p - 1 - rank; /* ranks after this one */
    int64_t laps = (int64_t)(plan->v - 1) * (plan->size + (plan->wide > 0));
    switch (plan->rule) {
    case DPAR_SCHEDULE_1F1B:
    case DPAR_SCHEDULE_ZB_H1: return behind;
    case DPAR_SCHEDULE_INTERLEAVED_ZB: return laps + behind;
    case DPAR_SCHEDULE_SEQ1F1B: return behind + plan->slices - 1;
    case DPAR_SCHEDULE_MOE_OVERLAP: return laps + 2 * behind + 1;
    default: return laps + 2 * behind;
    }
}

/* Writes a rank's list: `ahead` F, then F and backward in turn, then the remaining backwards. If
 * the backward is split, W starts after `late` I. */
static void dpari_order_turns(const dpari_plan *plan, int32_t rank, dpari_pen *pen)
{
    int64_t n = (int64_t)plan->m * plan->v, i;
    int64_t ahead = dpari_least(dpari_plan_ahead(plan, rank), n);
    int64_t late =
        plan->rule == DPAR_SCHEDULE_ZB_2P ? 2 * (int64_t)rank : rank; /* I's before the first W */
    int split = plan->rule == DPAR_SCHEDULE_ZB_H1 || plan->rule == DPAR_SCHEDULE_ZB_2P ||
                plan->rule == DPAR_SCHEDULE_INTERLEAVED_ZB;
    dpari_turn f, b;
    dpari_turn_start(&f, plan);
    dpari_turn_start(&b, plan);
    for (i = 0; i < n + ahead; i++) {
        if (i < n) {
            dpari_pen_put(pen, DPAR_ACTION_FORWARD, f.chunk * plan->p + rank, f.first + f.at);
            pen->at[-1].joined = plan->rule == DPAR_SCHEDULE_MOE_OVERLAP && i >= ahead;
            dpari_turn_next(&f, plan);
        }
        if (i >= ahead) {
            int32_t u = b.first + b.at;
            if (plan->slices > 1) { /* the slices of a micro-batch go back in reverse order */
                u += plan->slices - 1 - 2 * (u % plan->slices);
            }
            dpari_pen_put(pen, split ? DPAR_ACTION_INPUT : DPAR_ACTION_BACKWARD,
                          (plan->v - 1 - b.chunk) * plan->p + rank, u);
            dpari_turn_next(&b, plan);
            if (split && i - ahead >= late) {
                dpari_pen_weight(pen);
            }
        }
    }
    for (i = split ? dpari_least(late, n) : 0; i > 0; i--) {
        dpari_pen_weight(pen);
    }
}

/* ---- the rules in which a stage runs all its micro-batches without a break ------------------- */

/* Appends all F, or all B, of a stage to its rank's list. While lists are written,
 * schedule->begin[r] is the current end of rank r's list. */
static void dpari_sweep_stage(const dpari_plan *plan, dpar_schedule *schedule, int32_t stage,
                              int kind)
{
    int64_t *end = &schedule->begin[schedule->rank_of[stage]];
    dpari_pen pen;
    int32_t i;
    pen.at = schedule->action + *end;
    for (i = 0; i < plan->m; i++) {
        int turned = kind == DPAR_ACTION_BACKWARD && plan->lifo;
        dpari_pen_put(&pen, kind, stage, turned ? plan->m - 1 - i : i);
    }
    *end += plan->m;
}

static void dpari_sweep_all(const dpari_plan *plan, dpar_schedule *schedule)
{
    int32_t i;
    for (i = 0; i < plan->stages; i++) {
        dpari_sweep_stage(plan, schedule, i, DPAR_ACTION_FORWARD);
    }
    for (i = plan->stages - 1; i >= 0 && plan->rule != DPAR_SCHEDULE_FORWARD_ONLY; i--) {
        dpari_sweep_stage(plan, schedule, i, DPAR_ACTION_BACKWARD);
    }
    for (i = plan->p; i > 0; i--) { /* the end of each list is where the next list begins */
        schedule->begin[i] = schedule->begin[i - 1];
    }
    schedule->begin[0] = 0;
}

/* ---- ZBV ------------------------------------------------------------------------------------- */

/* The two stages of a rank on the V, index 0 on the way down and 1 on the way up. */
typedef struct dpari_two {
    dpari_pen *pen;
    int32_t m; /* actions of micro-batches from m on are left out */
    int32_t stage[2];
    /* the next micro-batch of each stage and kind; B is counted with I */
    int32_t next[2][DPAR_ACTION_WEIGHT + 1];
} dpari_two;

static void dpari_two_put(dpari_two *t, int kind, int way)
{
    int32_t micro = t->next[way][kind == DPAR_ACTION_BACKWARD ? DPAR_ACTION_INPUT : kind]++;
    if (micro < t->m) {
        dpari_pen_put(t->pen, kind, t->stage[way], micro);
    }
}

static void dpari_two_back(dpari_two *t, int way)
{
    dpari_two_put(t, DPAR_ACTION_INPUT, way);
    dpari_two_put(t, DPAR_ACTION_WEIGHT, way);
}

/* Writes the phases of ZB-V in Qi 2023: warm-up, steady state, and the W at the end. With fewer
 * than 2p-1 micro-batches it writes the list for 2p-1 without the missing ones. */
static void dpari_order_zbv(const dpari_plan *plan, int32_t rank, dpari_pen *pen)
{
    int32_t n = plan->m > 2 * plan->p - 1 ? plan->m : 2 * plan->p - 1, i;
    dpari_two t;
    dpari_zero(&t, sizeof(t));
    t.pen = pen;
    t.m = plan->m;
    t.stage[0] = rank;
    t.stage[1] = 2 * plan->p - 1 - rank;
    for (i = 0; i < 2 * (plan->p - rank) - 1; i++) {
        dpari_two_put(&t, DPAR_ACTION_FORWARD, 0);
    }
    for (i = 0; i < rank; i++) {
        dpari_two_put(&t, DPAR_ACTION_FORWARD, 1);
        dpari_two_put(&t, DPAR_ACTION_FORWARD, 0);
    }
    for (i = rank; i < plan->p; i++) {
        dpari_two_put(&t, DPAR_ACTION_FORWARD, 1);
        dpari_two_back(&t, 1);
    }
    while (t.next[1][DPAR_ACTION_FORWARD] < n) {
        dpari_two_put(&t, DPAR_ACTION_FORWARD, 0);
        dpari_two_back(&t, 0);
        dpari_two_put(&t, DPAR_ACTION_FORWARD, 1);
        dpari_two_back(&t, 1);
    }
    for (i = 0; i < rank; i++) {
        dpari_two_put(&t, DPAR_ACTION_INPUT, 0);
        dpari_two_put(&t, DPAR_ACTION_INPUT, 1);
    }
    for (i = rank; i < plan->p; i++) {
        dpari_two_back(&t, 0);
    }
    while (t.next[1][DPAR_ACTION_WEIGHT] < n) {
        dpari_two_put(&t, DPAR_ACTION_WEIGHT, 1);
    }
    while (t.next[0][DPAR_ACTION_WEIGHT] < n) {
        dpari_two_put(&t, DPAR_ACTION_WEIGHT, 0);
    }
}

/* ---- DualPipe and DualPipeV ------------------------------------------------------------------ */

/* The two stages of a rank belong to two directions: direction 0 starts at the end of the pipeline
 * that is nearer to this rank, direction 1 at the other end. */

/* Appends an F of direction `way` that is joined with a B of the other direction. */
static void dpari_dual_fb(dpari_two *d, int way)
{
    dpari_two_put(d, DPAR_ACTION_FORWARD, way);
    d->pen->at[-1].joined = 1;
    dpari_two_put(d, DPAR_ACTION_BACKWARD, 1 - way);
}

/* Writes the eight phases of DeepSeek's DualPipe for the rank at distance `at` from its end of the
 * pipeline, with n micro-batches in each direction. p is the distance to the middle of DualPipe, or
 * to the turn of the V. */
static void dpari_dual_steps(dpari_two *d, int32_t p, int32_t at, int32_t n)
{
    int32_t i;
    for (i = 0; i < 2 * (p - at - 1); i++) {
        dpari_two_put(d, DPAR_ACTION_FORWARD, 0);
    }
    for (i = 0; i <= at; i++) {
        dpari_two_put(d, DPAR_ACTION_FORWARD, 0);
        dpari_two_put(d, DPAR_ACTION_FORWARD, 1);
    }
    for (i = at + 1; i < p; i++) {
        dpari_two_put(d, DPAR_ACTION_INPUT, 1);
        dpari_pen_weight(d->pen);
        dpari_two_put(d, DPAR_ACTION_FORWARD, 1);
    }
    for (i = 0; i < n - 2 * p + at + 1; i++) {
        dpari_dual_fb(d, 0);
        if (i == 0 && at == p - 1) { /* in the middle the first pair is not joined: F can start
                                        before the input of B has arrived */
            d->pen->at[-2].joined = 0;
        }
        dpari_dual_fb(d, 1);
    }
    for (i = at + 1; i < p; i++) {
        dpari_two_put(d, DPAR_ACTION_BACKWARD, 1);
        dpari_dual_fb(d, 1);
    }
    for (i = 0; i < 2 * (at + 1); i++) {
        dpari_two_put(d, i <= at ? DPAR_ACTION_BACKWARD : DPAR_ACTION_INPUT, i % 2 == 0);
    }
    for (i = at + 1; i < p; i++) {
        dpari_pen_weight(d->pen);
        dpari_two_put(d, DPAR_ACTION_INPUT, 0);
    }
    for (i = 0; i <= at; i++) {
        dpari_pen_weight(d->pen);
    }
}

static void dpari_order_dual(const dpari_plan *plan, int32_t rank, dpari_pen *pen)
{
    int faces = plan->rule == DPAR_SCHEDULE_DUALPIPE, turned = faces && rank >= plan->p / 2;
    int32_t half = faces ? plan->m / 2 : 0;
    dpari_two d;
    dpari_zero(&d, sizeof(d));
    d.pen = pen;
    d.m = plan->m;
    d.stage[turned] = rank;
    d.stage[1 - turned] = 2 * plan->p - 1 - rank;
    d.next[1 - turned][DPAR_ACTION_FORWARD] = d.next[1 - turned][DPAR_ACTION_INPUT] = half;
    if (faces) {
        dpari_dual_steps(&d, plan->p / 2, turned ? plan->p - 1 - rank : rank, half);
    } else {
        dpari_dual_steps(&d, plan->p, rank, plan->m);
    }
}

/* ---- Chimera --------------------------------------------------------------------------------- */

/* F and B take equal slots, and each rank alternates between two streams of actions. In one stream,
 * each unit of p micro-batches has p/2 F of the pipeline down and then p/2 B of the pipeline up.
 * The other stream has F of the pipeline up and B of the pipeline down. Units follow each other
 * without a gap. This function appends slot i of a stream. */
static void dpari_chimera_put(const dpari_plan *plan, int32_t rank, int up, int32_t i,
                              dpari_pen *pen)
{
    int32_t half = plan->p / 2, unit = i / plan->p, of = i % plan->p;
    int back = of >= half;
    int is_up = up != back;
    int32_t micro = unit * plan->p + of % half + (is_up ? half : 0);
    if (micro < plan->m) {
        const int32_t kind = back ? DPAR_ACTION_BACKWARD : DPAR_ACTION_FORWARD;
        dpari_pen_put(pen, kind, is_up ? 2 * plan->p - 1 - rank : rank, micro);
    }
}

static void dpari_order_chimera(const dpari_plan *plan, int32_t rank, dpari_pen *pen)
{
    int up = rank >= plan->p / 2; /* the stream that starts first on this rank */
    int32_t lead = up ? rank - plan->p / 2 + 1 : plan->p / 2 - rank; /* by this number of slots */
    int32_t n = (plan->m + plan->p - 1) / plan->p * plan->p, i;
    for (i = 0; i < n + lead; i++) {
        if (i >= lead) {
            dpari_chimera_put(plan, rank, !up, i - lead, pen);
        }
        if (i < n) {
            dpari_chimera_put(plan, rank, up, i, pen);
        }
    }
}

/* ---- writing the lists ----------------------------------------------------------------------- */

static void dpari_order_write(const dpari_plan *plan, int32_t rank, dpar_action *at)
{
    dpari_pen pen;
    pen.at = at;
    pen.input = at;
    switch (plan->rule) {
    case DPAR_SCHEDULE_ZBV: dpari_order_zbv(plan, rank, &pen); break;
    case DPAR_SCHEDULE_DUALPIPE:
    case DPAR_SCHEDULE_DUALPIPEV: dpari_order_dual(plan, rank, &pen); break;
    case DPAR_SCHEDULE_CHIMERA: dpari_order_chimera(plan, rank, &pen); break;
    default: dpari_order_turns(plan, rank, &pen); break;
    }
}

/* Sets rank_of and begin of the schedule. */
static void dpari_order_lists(dpar_schedule *schedule, const dpari_plan *plan,
                              const dpar_schedule_desc *order)
{
    int32_t i;
    for (i = 0; i < schedule->stages; i++) {
        schedule->rank_of[i] = (uint16_t)dpari_order_rank(order, i);
        schedule->begin[schedule->rank_of[i] + 1] += dpari_plan_count(plan, i);
    }
    for (i = 0; i < plan->p; i++) {
        schedule->begin[i + 1] += schedule->begin[i];
    }
}

/* Writes the schedule to the memory, which is large enough. Not inlined, so that its frame and
 * those of the check are not on the stack at the same time. */
DPARI_STATIC_NOINLINE void dpari_order_write_all(dpar_schedule *schedule,
                                                 const dpar_schedule_desc *order, void *mem,
                                                 int64_t bytes)
{
    dpari_plan k = dpari_plan_of(order);
    int64_t actions, own = dpari_plan_bytes(&k, &actions);
    int32_t r;
    (void)dpari_schedule_empty(schedule, k.p, k.stages, actions, mem, bytes, NULL);
    schedule->micro_batches = k.m;
    schedule->slices = k.slices;
    schedule->chain = dpari_order_both_ways(k.rule) ? k.p : schedule->stages;
    dpari_order_lists(schedule, &k, order);
    if (dpari_order_sweeps(k.rule)) {
        dpari_sweep_all(&k, schedule);
    } else if (dpari_plan_works(&k)) {
        dpari_v_make(k.rule, schedule, (unsigned char *)mem + own);
    } else {
        for (r = 0; r < k.p; r++) {
            dpari_order_write(&k, r, schedule->action + schedule->begin[schedule->rank_of[r]]);
        }
    }
}

/* Checks the description and the memory. Not inlined, so that its frame is gone when the lists are
 * written, which takes the most stack. */
DPARI_STATIC_NOINLINE dpar_status dpari_order_room(const dpar_schedule_desc *order, const void *mem,
                                                   int64_t bytes, dpar_why *why)
{
    const int64_t needed = dpari_schedule_generate_bytes(order, why);
    if (needed < 0) {
        return dpari_order_check(order, NULL);
    }
    if (mem != NULL && bytes >= needed) {
        return DPAR_OK;
    }
    dpari_needs_bytes(why, needed);
    return dpari_say(DPAR_E_ROOM, why,
                     "%s on %d ranks with %d micro-batches needs %ld bytes, got %ld",
                     dpar_schedule_name(order->rule), order->ranks, order->micro_batches, needed,
                     mem == NULL ? 0 : bytes);
}

/* Generates the schedule of order->rule. */
static dpar_status dpari_order_make(dpar_schedule *schedule, const dpar_schedule_desc *order,
                                    void *mem, int64_t bytes, dpar_why *why)
{
    const dpar_status status = dpari_order_room(order, mem, bytes, why);
    if (status == DPAR_OK) {
        dpari_order_write_all(schedule, order, mem, bytes);
    }
    return status;
}

DPAR_API dpar_status dpar_schedule_generate(dpar_schedule *schedule, const dpar_schedule_desc *desc,
                                            void *mem, int64_t bytes, dpar_why *why)
{
    dpar_schedule_desc named;
    dpar_status st;
    if (desc->rule != 0 || desc->name == NULL) {
        return dpari_order_make(schedule, desc, mem, bytes, why);
    }
    named = *desc;
    st = dpar_schedule_find(&named, desc->name, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_order_make(schedule, &named, mem, bytes, why);
}
