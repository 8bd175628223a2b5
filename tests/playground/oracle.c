/* SPDX-License-Identifier: MIT-0 */
/* oracle - what docs/playground/index.html should show, from the library compiled here. A line in
 * is the link of a view, its words with blanks between and without what is empty: "plan
 * model=llama-3-8b machine=dgx-h100 ...". Lines out are "name value"; "." ends them. Who holds a
 * painted element is asked element by element, and a halo is counted cell by cell: not by the calls
 * that the page makes. */
#include "dpar_cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *word[64];
static int words;

static const char *get(const char *key)
{
    const size_t n = strlen(key);
    int i;
    for (i = 0; i < words; i++) {
        if (strncmp(word[i], key, n) == 0 && word[i][n] == '=') {
            return word[i] + n + 1;
        }
    }
    return "";
}
static long number(const char *key)
{
    return atol(get(key));
}
static void say(const char *name, double x)
{
    printf("%s %.17g\n", name, x);
}

/* ---- plans ---- */

static void say_plan(const char *name, const dpar_plan *p)
{
    char full[80];
    const double value[] = {p->memory.total, p->step.total, p->step.tokens_per_s_gpu, p->step.mfu};
    const char *const of[] = {"bytes", "seconds", "rate", "mfu"};
    int i;
    for (i = 0; i < 4; i++) {
        snprintf(full, sizeof full, "%s%s", name, of[i]);
        say(full, value[i]);
    }
}

static void plan(void)
{
    static const char *const passed[] = {"gpus", "seq", "batch", "precision", "stack", "fix"};
    static dpar_plan_query asked;
    static dpar_planner planner;
    static dpar_plan top[8], front[32];
    char options[2000] = "", name[40];
    dpar_planner_desc q;
    dpar_why why;
    dpar_status st;
    int i;
    for (i = 0; i < 6; i++) {
        if (get(passed[i])[0] != 0) {
            snprintf(options + strlen(options), sizeof options - strlen(options), " %s=%s",
                     passed[i], get(passed[i]));
        }
    }
    if (strcmp(get("search"), "one") == 0) {
        static dpar_plan_result one;
        snprintf(options + strlen(options), sizeof options - strlen(options), " evaluate=%s",
                 get("strategy"));
        st = dpar_plan_search(get("model"), get("machine"), options, &one, &why);
        if (st != DPAR_OK) {
            printf("why %s\n", why.text);
        }
        if (st == DPAR_OK || st == DPAR_E_MEMORY) {
            say_plan("plan0.", &one.plan[0]);
            say_plan("", &one.plan[0]);
        }
        return;
    }
    st = dpar_plan_query_read(get("model"), get("machine"), options, &asked, &why);
    if (st == DPAR_OK) {
        q = asked.search;
        q.top = top;
        q.top_capacity = 8;
        q.front = front;
        q.front_capacity = 32;
        st = dpar_planner_init(&planner, &asked.job, &q, &why);
        while (st == DPAR_OK || st == DPAR_MORE) {
            st = dpar_planner_run(&planner, 1 << 30, &why);
        }
    }
    if (st < 0) {
        printf("why %s\n", why.text);
        return;
    }
    for (i = 0; i < planner.top_count; i++) {
        snprintf(name, sizeof name, "plan%d.", i);
        say_plan(name, &top[i]);
    }
    say_plan("", &top[0]);
    say("evaluated", (double)planner.evaluated);
    for (i = 0; i < DPAR_MEMORY_COUNT; i++) {
        snprintf(name, sizeof name, "memory%d", i);
        if (top[0].memory.term[i] > 0) {
            say(name, top[0].memory.term[i]);
        }
    }
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        snprintf(name, sizeof name, "time%d", i);
        if (top[0].step.term[i] > 0) {
            say(name, top[0].step.term[i]);
        }
    }
}

/* ---- pipelines: a tick is a hundredth of a unit and its 5040th part ---- */

typedef struct ran {
    dpar_timing timing;
    double share;
} ran;

static dpar_status run(int32_t rule, ran *r, dpar_why *why)
{
    static int64_t memory[4 << 20];
    dpar_schedule_desc o;
    dpar_schedule s;
    dpar_schedule_times t;
    dpar_schedule_simulate_desc how;
    int32_t share;
    dpar_status st;
    memset(&o, 0, sizeof o);
    memset(&t, 0, sizeof t);
    memset(&how, 0, sizeof how);
    o.rule = rule;
    o.ranks = (int32_t)number("ranks");
    o.micro_batches = (int32_t)number("micro");
    o.slices = rule == DPAR_SCHEDULE_SEQ1F1B ? (int32_t)number("slices") : 0;
    if (strstr(" interleaved breadth-first interleaved-zb moe-overlap forward-only ",
               dpar_schedule_name(rule)) != NULL &&
        rule != DPAR_SCHEDULE_1F1B) {
        o.chunks = (int32_t)number("stages");
    }
    st = dpar_schedule_generate(&s, &o, NULL, 0, why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    st = dpar_schedule_generate(&s, &o, memory, sizeof memory / 2, why);
    if (st != DPAR_OK) {
        return st;
    }
    share = s.chain < s.stages ? 1 : s.stages / s.ranks * s.slices;
    t.forward.all = (int64_t)(100 * atof(get("forward")) + 0.5) * 5040 / share;
    t.input.all = (int64_t)(100 * atof(get("input")) + 0.5) * 5040 / share;
    t.weight.all = (int64_t)(100 * atof(get("weight")) + 0.5) * 5040 / share;
    t.latency.all = (int64_t)(100 * atof(get("message")) + 0.5) * 5040;
    how.times = &t;
    r->share = share;
    return dpar_schedule_simulate(&s, &how, &r->timing, memory + (2 << 20), sizeof memory / 2, why);
}

static void say_run(const char *of, const ran *r)
{
    char name[80];
    snprintf(name, sizeof name, "%smakespan", of);
    say(name, (double)r->timing.makespan / 504000.0);
    snprintf(name, sizeof name, "%sidle", of);
    say(name,
        (double)r->timing.bubble_of_makespan.part / (double)r->timing.bubble_of_makespan.whole);
    snprintf(name, sizeof name, "%speak", of);
    say(name, r->timing.peak_count / r->share);
}

static void pipeline(void)
{
    dpar_schedule_desc o;
    ran r;
    dpar_why why;
    char name[80];
    int32_t rule;
    memset(&o, 0, sizeof o);
    if (dpar_schedule_find(&o, get("schedule"), &why) != DPAR_OK ||
        run(o.rule, &r, &why) != DPAR_OK) {
        printf("why %s\n", why.text);
    } else {
        say_run("", &r);
        say("span", (double)r.timing.span / 504000.0);
    }
    for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
        const dpar_status st = run(rule, &r, &why);
        snprintf(name, sizeof name, "%s.", dpar_schedule_name(rule));
        if (st == DPAR_OK) {
            say_run(name, &r);
        } else {
            printf("%swhy %s\n", name, why.text);
        }
    }
}

/* ---- layouts ---- */

static void layout(void)
{
    static const char *const rules[] = {"chunk", "even",    "floor",  "block-cyclic",
                                        "",      "strided", "zigzag", "stripe"};
    static long held[1024];
    dpar_placement p[3];
    dpar_mesh mesh;
    dpar_layout l;
    dpar_why why;
    int32_t sizes[3], i, rank, copy;
    int64_t extent[2], x[2];
    long box[4];
    dpar_status st;
    char name[40];
    extent[0] = number("rows");
    extent[1] = number("columns");
    for (i = 0; i < 3; i++) {
        const char *how, *rule;
        int32_t k = 0;
        snprintf(name, sizeof name, "size%d", (int)i);
        sizes[i] = (int32_t)number(name);
        snprintf(name, sizeof name, "how%d", (int)i);
        how = get(name);
        snprintf(name, sizeof name, "rule%d", (int)i);
        rule = get(name);
        while (strcmp(rules[k], rule) != 0) {
            k++;
        }
        snprintf(name, sizeof name, "block%d", (int)i);
        p[i] = strcmp(how, "replicate") == 0 ? dpar_replicate()
               : strcmp(how, "partial") == 0
                   ? dpar_partial(DPAR_SUM)
                   : dpar_shard_by(strcmp(how, "columns") == 0, k, number(name));
    }
    st = dpar_mesh_init(&mesh, "dp_replicate dp_shard tp", sizes,
                        strcmp(get("order"), "first") == 0 ? DPAR_ORDER_FIRST_FASTEST
                                                           : DPAR_ORDER_LAST_FASTEST,
                        0, &why);
    st = st == DPAR_OK ? dpar_layout_init(&l, &mesh, 2, extent, p, &why) : st;
    if (st != DPAR_OK) {
        printf("why %s\n", why.text);
        return;
    }
    sscanf(get("paint"), "%ld,%ld,%ld,%ld", &box[0], &box[1], &box[2], &box[3]);
    memset(held, 0, sizeof held);
    for (x[0] = box[0]; x[0] <= box[2]; x[0]++) {
        for (x[1] = box[1]; x[1] <= box[3]; x[1]++) {
            for (copy = 0; (rank = dpar_layout_owner(&l, x, copy, NULL)) >= 0; copy++) {
                held[rank]++;
            }
        }
    }
    for (i = 0; i < mesh.size; i++) {
        snprintf(name, sizeof name, "held%d", (int)i);
        if (held[i] > 0) {
            say(name, (double)held[i]);
        }
        snprintf(name, sizeof name, "share%d", (int)i);
        say(name, (double)dpar_layout_count(&l, i));
    }
    say("rank.elements", (double)dpar_layout_count(&l, (int32_t)number("rank")));
}

/* ---- grids of two dims ---- */

static int64_t cells[2];
static int32_t parts[2];
static dpar_mapping at;
static uint32_t round_;
static int corners;

static int32_t rank_of(int64_t y, int64_t x) /* -1: no such cell */
{
    int64_t c[2];
    int32_t coord[2], block;
    c[0] = round_ & 1u ? (y % cells[0] + cells[0]) % cells[0] : y;
    c[1] = round_ & 2u ? (x % cells[1] + cells[1]) % cells[1] : x;
    block = dpar_cart_owner(2, cells, parts, c);
    if (block < 0) {
        return -1;
    }
    coord[0] = block / parts[1];
    coord[1] = block % parts[1];
    return dpar_mapping_rank(&at, coord);
}

/* How many cells of its halo `rank` gets from each. */
static void receive(int32_t rank, long wide, long *from)
{
    int32_t coord[2];
    int64_t first[2], n[2], y, x;
    dpar_mapping_coords(&at, rank, coord);
    dpar_cart_range(2, cells, parts, coord[0] * parts[1] + coord[1], first, n);
    for (y = first[0] - wide; y < first[0] + n[0] + wide; y++) {
        for (x = first[1] - wide; x < first[1] + n[1] + wide; x++) {
            const int out =
                (y < first[0] || y >= first[0] + n[0]) + (x < first[1] || x >= first[1] + n[1]);
            const int32_t owner = rank_of(y, x);
            if (owner >= 0 && (out == 1 || (out == 2 && corners))) {
                from[owner]++;
            }
        }
    }
}

static void halo(void)
{
    static const char *const ways[] = {"least", "placed", "mpi"};
    static long from[1024], to[1024], of[1024];
    const int32_t ranks = (int32_t)number("ranks"), per_node = (int32_t)number("node"),
                  mine = (int32_t)number("rank");
    const long wide = number("halo");
    dpar_cart_choose_desc grid;
    dpar_cart cart;
    dpar_mapping place;
    dpar_why why;
    char name[40];
    int way, d;
    int32_t r;
    long y, x;
    sscanf(get("cells"), "%ldx%ld", &y, &x);
    cells[0] = y;
    cells[1] = x;
    corners = get("corners")[0] != 0;
    round_ = (strchr(get("round"), '0') != NULL ? 1u : 0u) |
             (strchr(get("round"), '1') != NULL ? 2u : 0u);
    for (way = 0; way < 3; way++) {
        dpar_stencil s;
        dpar_mapping apart;
        int64_t all, rank, between, node;
        int32_t p[2] = {0, 0};
        dpar_status st;
        memset(&grid, 0, sizeof grid);
        grid.ranks = ranks;
        grid.dims = 2;
        grid.cells[0] = cells[0];
        grid.cells[1] = cells[1];
        grid.periodic = round_;
        st = way == 2 ? dpar_cart_dims(ranks, 2, p, &why)
                      : dpar_cart_choose_parts(&grid, p, NULL, &why);
        st = st == DPAR_OK ? dpar_cart_init(&cart, 2, p, round_, &why) : st;
        if (st != DPAR_OK) {
            printf("why %s\n", why.text);
            return;
        }
        memset(&s, 0, sizeof s);
        s.shape = corners ? DPAR_STENCIL_BOX : DPAR_STENCIL_STAR;
        s.bytes = number("bytes");
        for (d = 0; d < 2; d++) {
            s.block[d] = (cells[d] + p[d] - 1) / p[d];
            s.width[d] = wide;
        }
        st = way == 1 ? dpar_mapping_choose(&place, &cart, per_node, &s, &why)
                      : dpar_mapping_init(&place, &cart, DPAR_MAPPING_ROW_MAJOR, per_node, &why);
        if (st != DPAR_OK ||
            dpar_mapping_init(&apart, &cart, DPAR_MAPPING_ROW_MAJOR, 1, &why) != DPAR_OK ||
            dpar_mapping_cost(&apart, &s, &all, &rank, &why) != DPAR_OK ||
            dpar_mapping_cost(&place, &s, &between, &node, &why) != DPAR_OK) {
            printf("why %s\n", why.text);
            return;
        }
        snprintf(name, sizeof name, "%s.all", ways[way]);
        say(name, 2.0 * (double)all);
        snprintf(name, sizeof name, "%s.between", ways[way]);
        say(name, 2.0 * (double)between);
        snprintf(name, sizeof name, "%s.rank", ways[way]);
        say(name, (double)rank);
        snprintf(name, sizeof name, "%s.node", ways[way]);
        say(name, (double)node);
        if (strcmp(ways[way], get("cut")) == 0) {
            at = place;
            memcpy(parts, p, sizeof parts);
        }
    }
    memset(from, 0, sizeof from);
    memset(to, 0, sizeof to);
    receive(mine, wide, from);
    for (r = 0; r < ranks; r++) {
        memset(of, 0, sizeof of);
        receive(r, wide, of);
        to[r] = of[mine];
    }
    for (r = 0; r < ranks; r++) {
        if (from[r] + to[r] > 0) {
            snprintf(name, sizeof name, "received%d", (int)r);
            say(name, (double)from[r]);
            snprintf(name, sizeof name, "sent%d", (int)r);
            say(name, (double)to[r]);
        }
    }
}

int main(void)
{
    static char line[4000];
    while (fgets(line, sizeof line, stdin) != NULL) {
        char *s;
        line[strcspn(line, "\n")] = 0;
        words = 0;
        for (s = strtok(line, " "); s != NULL && words < 64; s = strtok(NULL, " ")) {
            word[words++] = s;
        }
        if (words > 0) {
            if (strcmp(word[0], "plan") == 0) {
                plan();
            } else if (strcmp(word[0], "pipeline") == 0) {
                pipeline();
            } else if (strcmp(word[0], "layout") == 0) {
                layout();
            } else {
                halo();
            }
        }
        printf(".\n");
    }
    return 0;
}
