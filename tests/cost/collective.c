/* SPDX-License-Identifier: MIT-0 */
/* Tests collective: compares the predictor with the textbooks on machines of only bandwidth or only
 * latency; hierarchy and sharing; and with nccl-tests' published tables, next to NCCL's own tuner.
 * Required: a mean absolute error <= 7 % over unmarked rows of 1 MB and more, and below the
 * tuner's. ROWS=1 prints every row. Run with: tests/run test cost.
 * Constants are from vTrain's all-reduce tables (Volta, Ampere, inside a node), SimAI's tables
 * (net_s, rings and all-to-all across nodes) and marked rows of nccl-tests: H100-class at 1, 64 and
 * 8192 MiB, GH200 at 1, 16 and 128 MiB. Marked rows are never counted; no A100 row is marked. */
#include "dpar_cost.h"

#include <stdlib.h>

#include "check.h"
#include "nccl_tuner.h"
#include "../../helpers/net_rows.h"
#include "plan_calls.h"

static void test_names(void)
{
    int i;
    for (i = 0; i < DPAR_CALL_COLLECTIVE_COUNT; i++) {
        CHECK(dpar_call_name(i)[0] != '?');
    }
    CHECK_TEXT(dpar_call_name(-1), "?");
    CHECK_TEXT(dpar_call_name(DPAR_CALL_REDUCE_SCATTER), "reduce-scatter");
}

static dpar_cluster machine(const char *text)
{
    dpar_cluster c;
    dpar_why why;
    why.text[0] = 0;
    CHECK_INT(dpar_cluster_read(&c, text, strlen(text), &why), DPAR_OK);
    CHECK_TEXT(why.text, "");
    return c;
}

static void test_placement(void)
{
    dpar_cluster c = machine("4x8:h100-80,nic=8x50");
    dpar_cluster_group g = group_of(&c, 8, 1); /* tp: in one node */
    CHECK_INT(g.nodes, 1);
    g = group_of(&c, 4, 8); /* dp under tp = 8: one rank per node, eight such groups */
    CHECK_INT(g.per_node, 1);
    CHECK_INT(g.nodes, 4);
    CHECK_INT(g.sharing, 8);
    g = group_of(&c, 16, 2);
    CHECK_INT(g.per_node, 4);
    CHECK_INT(g.nodes, 4);
    CHECK_INT(g.sharing, 2);
    g = group_of(&c, 2147483647, 2147483647);
    CHECK_INT(g.per_node, 1);
    c = machine("summit,nodes=4"); /* six per node: 4 ranks straddle, 3 and 6 do not */
    g = group_of(&c, 4, 1);
    CHECK(g.nodes == 2 && g.per_node == 2 && g.sharing == 3);
    g = group_of(&c, 3, 1);
    CHECK(g.nodes == 1 && g.per_node == 3 && g.sharing == 2);
    g = group_of(&c, 3, 2);
    CHECK(g.nodes == 1 && g.per_node == 3);
    g = group_of(&c, 6, 1);
    CHECK(g.nodes == 1 && g.sharing == 1);
    c = machine("6:v100-16"); /* one node holds everything */
    g = group_of(&c, 4, 1);
    CHECK_INT(g.nodes, 1);
}

static dpar_collective_cost cost_of(const dpar_cluster *c, int n, int stride, int kind,
                                    double bytes)
{
    dpar_cluster_group g = group_of(c, n, stride);
    dpar_collective_cost cost;
    dpar_collective_predict(c, &g, kind, bytes, &cost);
    return cost;
}

/* Returns the number of successive messages of the textbooks' rings, pairs and pipelined chains,
 * and of dissemination for a barrier (MPICH's comments; Thakur, Rabenseifner, Gropp 2005). */
static double book_messages(int kind, int p)
{
    return kind == DPAR_CALL_ALL_REDUCE  ? 2.0 * (p - 1)
           : kind == DPAR_CALL_SEND_RECV ? 1.0
           : kind == DPAR_CALL_BARRIER   ? ceil(log2(p))
                                         : p - 1.0;
}

/* Returns the bytes on the wire per byte of the full vector, as nccl-tests' bus factor does. */
static double book_bytes(int kind, int p)
{
    switch (kind) {
    case DPAR_CALL_ALL_REDUCE: return 2.0 * (p - 1) / p;
    case DPAR_CALL_BROADCAST:
    case DPAR_CALL_REDUCE:
    case DPAR_CALL_SEND_RECV: return 1.0;
    case DPAR_CALL_BARRIER: return 0.0;
    default: return (p - 1.0) / p;
    }
}

/* Compares the predictor with the textbooks on machines that have only bandwidth or only latency,
 * except for what collective.c documents of all-to-all and of the switch. */
static void test_textbook(void)
{
    dpar_cluster wide = machine("1x8:a100-80,link_share=1,link_us=0,base_us=0");
    dpar_cluster slow = machine("1x8:a100-80,link_us=1,base_us=0");
    dpar_cluster wide_net = machine("8x1:a100-80,nic=1x25,net_share=1,net_us=0,base_us=0");
    dpar_cluster slow_net = machine("8x1:a100-80,nic=1x25,net_us=1,base_us=0"), c;
    const double n = 1e9;
    int kind, p;
    for (kind = DPAR_CALL_ALL_REDUCE; kind < DPAR_CALL_COLLECTIVE_COUNT; kind++) {
        /* its flows collide in a node; a send and a receive per peer */
        double share = kind == DPAR_CALL_ALL_TO_ALL ? 0.965 : 1.0;
        double posts = kind == DPAR_CALL_ALL_TO_ALL ? 3.3 : 1.0;
        for (p = 2; p <= 8; p++) {
            CHECK_NEAR(cost_of(&wide, p, 1, kind, n).link_bytes, book_bytes(kind, p) * n, 1e-12);
            CHECK_NEAR(cost_of(&slow, p, 1, kind, 1e-3).seconds,
                       posts * book_messages(kind, p) * 1e-6, 1e-8);
        }
        CHECK_NEAR(cost_of(&wide, 8, 1, kind, n).seconds,
                   book_bytes(kind, 8) * n / (share * wide.link_Bps), 1e-12);
        CHECK_NEAR(cost_of(&wide_net, 8, 1, kind, n).seconds, book_bytes(kind, 8) * n / 25e9,
                   1e-12);
        if (kind != DPAR_CALL_SEND_RECV &&
            kind != DPAR_CALL_ALL_TO_ALL) { /* fences; many in flight */
            CHECK_NEAR(cost_of(&slow_net, 8, 1, kind, 1e-3).seconds, book_messages(kind, 8) * 1e-6,
                       1e-8);
        }
    }
    /* the switch receives each vector once and sends the sum once, at 0.86 of the links */
    c = machine("1x8:h100-80,link_share=1,link_us=0,base_us=0");
    CHECK_NEAR(cost_of(&c, 8, 1, DPAR_CALL_ALL_REDUCE, n).seconds,
               9.0 / 8 * n / (0.86 * c.link_Bps), 1e-12);
    /* the number worked out in the teaching texts: 28 GB, 8 ranks, 600 GB/s */
    c = machine("1x8:a100-80,nvlink=600,link_share=1,link_us=0,base_us=0");
    CHECK_NEAR(cost_of(&c, 8, 1, DPAR_CALL_ALL_REDUCE, 28e9).seconds, 0.0817, 1e-3);
}

/* Facts 4.2: 1 GiB on 4 nodes of 8, NVLink 360 effective, NIC 50: 9.25 ms serial, 5.22 pipelined.
 * */
static void test_hierarchy(void)
{
    dpar_cluster c = machine("4x8:h100-80,nic=8x50,nvls=0,link_share=0.8,net_share=1,net_us=0,"
                             "link_us=0,base_us=0");
    double gib = 1073741824.0, inner = 7.0 / 8 * gib / 360e9, outer = 1.5 * gib / 8 / 50e9;
    dpar_collective_cost x;
    CHECK_NEAR(2 * inner + outer, 9.25e-3, 1e-3);
    CHECK_NEAR(2 * inner, 5.22e-3, 1e-3);
    x = cost_of(&c, 32, 1, DPAR_CALL_ALL_REDUCE, gib);
    CHECK(x.seconds >= 5.19e-3 && x.seconds <= 9.25e-3); /* a flat ring over 8 NICs: 5.20 */
    CHECK_NEAR(x.nic_bytes, 1.5 * gib / 8, 1e-9);
    CHECK_NEAR(x.link_bytes, 1.75 * gib, 1e-9);
    /* "n over one NIC" is wrong by a factor of 2.3 to 4 */
    CHECK(gib / 50e9 > 2.3 * x.seconds);
    /* all-to-all: (k-1)/k of the bytes at the NIC rate of one GPU */
    x = cost_of(&c, 32, 1, DPAR_CALL_ALL_TO_ALL, gib);
    CHECK_NEAR(x.nic_bytes, 0.75 * gib, 1e-9);
    CHECK_NEAR(x.seconds, 0.75 * gib / 50e9, 1e-9);
}

/* Checks T5: assuming one NIC for all ranks is wrong by a factor of up to 4, and the whole node's
 * NICs for one pipeline message by 8. */
static void test_sharing(void)
{
    dpar_cluster c = machine("4x8:h100-80,nic=8x50,net_share=1"), d;
    dpar_cluster_group g;
    dpar_collective_cost x;
    CHECK_NEAR(cost_of(&c, 4, 8, DPAR_CALL_ALL_REDUCE, 1e9).nic_Bps, 50e9,
               1e-9); /* 8 rings, 8 NICs */
    CHECK_NEAR(cost_of(&c, 32, 1, DPAR_CALL_ALL_REDUCE, 1e9).nic_Bps, 50e9, 1e-9);
    g = group_of(&c, 4, 8);
    g.sharing = 1; /* a single pipeline: one NIC, not the node's eight */
    dpar_collective_predict(&c, &g, DPAR_CALL_SEND_RECV, 1e9, &x);
    CHECK_NEAR(x.nic_Bps, 50e9, 1e-9);
    d = machine("4x4:a100-40,nic=1x25,net_share=1"); /* four rings share one NIC */
    CHECK_NEAR(cost_of(&d, 4, 4, DPAR_CALL_ALL_REDUCE, 1e9).nic_Bps, 6.25e9, 1e-9);
    CHECK_NEAR(cost_of(&d, 16, 1, DPAR_CALL_ALL_REDUCE, 1e9).nic_Bps, 6.25e9, 1e-9);
    d = machine("4x8:h100-80,nic=8x50,net_share=1,taper=0.5");
    CHECK_NEAR(cost_of(&d, 4, 8, DPAR_CALL_ALL_REDUCE, 1e9).nic_Bps, 25e9, 1e-9);
}

/* Checks T7, in-switch reduction is used only for all-reduce and from some group and message size
 * on; and T6, many steps make rings slow. */
static void test_rules(void)
{
    dpar_cluster c = machine("1x8:h100-80"), d = machine("1x8:h100-80,nvls=0"), e;
    double big = 1073741824.0;
    CHECK_INT(cost_of(&c, 8, 1, DPAR_CALL_ALL_REDUCE, big).algorithm, DPAR_ALG_IN_SWITCH);
    CHECK(cost_of(&c, 8, 1, DPAR_CALL_ALL_REDUCE, 65536.0).algorithm != DPAR_ALG_IN_SWITCH);
    CHECK(cost_of(&c, 2, 1, DPAR_CALL_ALL_REDUCE, big).algorithm != DPAR_ALG_IN_SWITCH);
    CHECK(cost_of(&d, 8, 1, DPAR_CALL_ALL_REDUCE, big).seconds >
          1.2 * cost_of(&c, 8, 1, DPAR_CALL_ALL_REDUCE, big).seconds);
    CHECK_NEAR(cost_of(&d, 8, 1, DPAR_CALL_ALL_GATHER, big).seconds,
               cost_of(&c, 8, 1, DPAR_CALL_ALL_GATHER, big).seconds, 0);
    /* a bus bandwidth above the link's: measured 478 on 450 GB/s */
    CHECK(1.75 * 8 * big / cost_of(&c, 8, 1, DPAR_CALL_ALL_REDUCE, 8 * big).seconds > 450e9);
    c = machine("16x8:h100-80,nic=8x50");
    d = machine("16x8:h100-80,nic=8x50,sharp=1");
    CHECK_INT(cost_of(&d, 128, 1, DPAR_CALL_ALL_REDUCE, 1e6).algorithm, DPAR_ALG_IN_SWITCH);
    CHECK(cost_of(&d, 128, 1, DPAR_CALL_ALL_REDUCE, big).seconds <
          cost_of(&c, 128, 1, DPAR_CALL_ALL_REDUCE, big).seconds);
    CHECK_NEAR(cost_of(&d, 128, 1, DPAR_CALL_REDUCE_SCATTER, big).seconds,
               cost_of(&c, 128, 1, DPAR_CALL_REDUCE_SCATTER, big).seconds, 0);
    e = machine("128x8:h100-80,nic=8x50"); /* 16 MiB at 1024 ranks: 0.9 % of the NICs */
    CHECK(16777216.0 / 400e9 / cost_of(&e, 1024, 1, DPAR_CALL_ALL_GATHER, 16777216.0).seconds <
          0.015);
    /* direct links, not a switch: a pair has a third of a quad's links */
    e = machine("derecho");
    CHECK(cost_of(&e, 2, 1, DPAR_CALL_ALL_GATHER, big).seconds >
          1.9 * cost_of(&e, 4, 1, DPAR_CALL_ALL_GATHER, big).seconds);
    CHECK_NEAR(cost_of(&e, 8, 1, DPAR_CALL_ALL_REDUCE, 0.0).seconds, 0.0, 0);
    CHECK_NEAR(cost_of(&e, 1, 1, DPAR_CALL_ALL_REDUCE, 1e9).seconds, 0.0, 0);
    CHECK_NEAR(cost_of(&e, 8, 1, DPAR_CALL_ALL_REDUCE, HUGE_VAL - HUGE_VAL).seconds, 0.0, 0);
}

/* Checks a torus: two chips have one link between them, the chips of an axis its two links, those
 * of a plane four. In a whole pod all links count: 102.4 and 51.2 TB/s by Google's pages. */
static void test_torus(void)
{
    static const struct {
        int n;
        double share;
    } of[] = {{2, 1 / 6.0}, {4, 1 / 3.0}, {8, 2 / 3.0}, {16, 2 / 3.0}, {32, 1}, {64, 1}};
    dpar_cluster cube = machine("tpu-v5p"), v6e = machine("tpu-v6e"), v5e = machine("tpu-v5e");
    size_t i;
    for (i = 0; i < sizeof of / sizeof of[0]; i++) {
        const double bytes = 1e13, n = of[i].n;
        CHECK_NEAR(cost_of(&cube, of[i].n, 1, DPAR_CALL_ALL_GATHER, bytes).seconds,
                   (n - 1) / n * bytes /
                       (600e9 * of[i].share * cube.cal.value[DPAR_CAL_LINK_SHARE]),
                   1e-3);
    }
    CHECK_NEAR(256 * v6e.link_Bps, 102.4e12, 1e-9);
    CHECK_NEAR(256 * v5e.link_Bps, 51.2e12, 1e-9);
}

/* Checks that more bytes never cost less, on any machine, for any kind, and that every cost is a
 * usable number. */
static void test_monotone(void)
{
    static const char *const text[] = {
        "16x8:a100-80,nic=8x25", "derecho", "16xdgx-h100", "frontier,nodes=16",
        "gb200-nvl72",           "tpu-v5e", "dgx-v100",    "summit",
        "8x8:mi300x,sharp=1"};
    static const int stride[] = {1, 2, 8};
    size_t i, k;
    for (i = 0; i < sizeof text / sizeof text[0]; i++) {
        dpar_cluster c = machine(text[i]);
        int kind, n;
        for (kind = DPAR_CALL_ALL_REDUCE; kind < DPAR_CALL_COLLECTIVE_COUNT; kind++) {
            for (n = 2; n <= 64; n += n < 9 ? 1 : 11) {
                for (k = 0; k < 3; k++) {
                    double last = 0.0, bytes;
                    for (bytes = 1.0; bytes < 1e11; bytes *= 1.7) {
                        dpar_collective_cost x = cost_of(&c, n, stride[k], kind, bytes);
                        CHECK(x.seconds >= last && x.seconds > 0.0 && x.seconds < 1e6);
                        CHECK(x.latency_s >= 0.0 && x.latency_s <= x.seconds * (1 + 1e-12));
                        CHECK(x.algorithm >= 0 && x.algorithm < DPAR_ALG_COUNT);
                        last = x.seconds;
                    }
                }
            }
        }
    }
}

/* ---- nccl-tests ------------------------------------------------------------------------------ */

static double column(const char *line, int want, char *text)
{
    int i = 0, k = 0;
    for (; *line != 0 && i < want; line++) {
        i += *line == ',';
    }
    while (*line != 0 && *line != ',' && k < 60) {
        text[k++] = *line++;
    }
    text[k] = 0;
    return atof(text);
}

/* A row of nccl_tests.csv. */
typedef struct row {
    char gpu[64], fabric[64], coll[64];
    int kind, group, off, marked;
    double bytes, us;
} row;

enum { A100, H100_AR, H100_AGRS, H100_A2A, GH200, GROUPS };

static int read_row(FILE *f, row *r)
{
    static const char *const kinds[] = {"all_reduce", "all_gather", "reduce_scatter", "alltoall"};
    char line[512], cell[64];
    if (fgets(line, sizeof line, f) == NULL) {
        return 0;
    }
    (void)column(line, 1, r->gpu);
    (void)column(line, 4, r->fabric);
    (void)column(line, 5, r->coll);
    r->bytes = column(line, 6, cell);
    r->us = column(line, 7, cell);
    for (r->kind = DPAR_CALL_ALL_REDUCE;
         r->kind < DPAR_CALL_ALL_TO_ALL &&
         strcmp(r->coll, kinds[r->kind - DPAR_CALL_ALL_REDUCE]) != 0;
         r->kind++) {
    }
    r->off = strstr(r->fabric, "OFF") != NULL;
    r->group = strcmp(r->gpu, "A100") == 0       ? A100
               : strcmp(r->gpu, "GH200") == 0    ? GH200
               : r->kind == DPAR_CALL_ALL_REDUCE ? H100_AR
               : r->kind == DPAR_CALL_ALL_TO_ALL ? H100_A2A
                                                 : H100_AGRS;
    /* these set constants: H100-class at 1, 64 and 8192 MiB, GH200 at 1, 16 and 128 MiB */
    r->marked = r->group == GH200
                    ? r->bytes == 1048576.0 || r->bytes == 16777216.0 || r->bytes == 134217728.0
                    : r->group != A100 && (r->bytes == 1048576.0 || r->bytes == 67108864.0 ||
                                           r->bytes == 8589934592.0);
    return 1;
}

static FILE *open_table(const char *name)
{
    char line[512];
    FILE *f = fopen(name, "r");
    CHECK(f != NULL);
    CHECK(f != NULL && fgets(line, sizeof line, f) != NULL);
    return f;
}

static void test_measured(void)
{
    static const char *const name[GROUPS] = {"A100 x8 all-reduce", "H100-class all-reduce",
                                             "H100-class AG, RS", "H100-class all-to-all",
                                             "GH200 2 x 4 all-reduce"};
    FILE *f = open_table("tests/data/cost/nccl_tests.csv");
    dpar_cluster a100 = machine("1x8:a100-80"), h100 = machine("1x8:h100-80");
    dpar_cluster alps = machine("alps,nodes=2");
    double sum[GROUPS] = {0}, worst[GROUPS] = {0}, tuner[GROUPS] = {0}, all = 0.0, off = 0.0;
    int n[GROUPS] = {0}, marked[GROUPS] = {0}, tuned[GROUPS] = {0}, total = 0, offs = 0, i;
    row r;
    if (f == NULL) {
        return;
    }
    while (read_row(f, &r)) {
        const dpar_cluster *c = r.group == A100 ? &a100 : r.group == GH200 ? &alps : &h100;
        dpar_cluster_group g = group_of(c, 8, 1);
        dpar_collective_cost x;
        static const char *const way[] = {"ring", "pairwise", "tree", "in-switch", "hierarchical"};
        const char *algorithm, *protocol;
        double error, t = 0.0;
        dpar_collective_predict(c, &g, r.kind, r.bytes, &x);
        error = x.seconds * 1e6 / r.us - 1.0;
        if (r.bytes < 1e6) {
            continue;
        }
        if (r.off) { /* a broken transport (TCP), T8: no model of the machine; listed separately */
            off += 1.0 / (1.0 + error);
            offs++;
            continue;
        }
        if (getenv("ROWS")) {
            printf("%-10s %-14s %12.0f %10.1f %10.1f %+6.1f %% %s%s\n", r.gpu, r.coll, r.bytes,
                   r.us, x.seconds * 1e6, 100.0 * error, way[x.algorithm], r.marked ? " *" : "");
        }
        marked[r.group] += r.marked;
        if (r.marked) {
            continue;
        }
        if (nccl_tuner(c, &g, r.kind, r.bytes, &t, &algorithm, &protocol) == DPAR_OK) {
            tuner[r.group] += fabs(t * 1e6 / r.us - 1.0);
            tuned[r.group]++;
        }
        sum[r.group] += fabs(error);
        worst[r.group] = fmax(worst[r.group], fabs(error));
        n[r.group]++;
        all += fabs(error);
        total++;
    }
    fclose(f);
    printf("nccl-tests rows >= 1 MB    rows  marked   error  largest   NCCL's tuner\n");
    for (i = 0; i < GROUPS; i++) {
        printf("%-26s %4d %7d %6.2f %% %6.1f %%", name[i], n[i], marked[i], 100.0 * sum[i] / n[i],
               100.0 * worst[i]);
        printf(tuned[i] ? " %10.2f %%\n" : "          -\n", 100.0 * tuner[i] / tuned[i]);
        CHECK(sum[i] / n[i] <= 0.08);
        CHECK(tuned[i] == 0 || sum[i] / n[i] < tuner[i] / tuned[i]);
    }
    printf("all                        %4d %7s %6.2f %%\n", total, "", 100.0 * all / total);
    printf("transport hook off: %d rows, measured %.1f times the prediction (apart)\n", offs,
           off / offs);
    CHECK_INT(total, 64);
    CHECK(all / total <= 0.07);
}

/* Checks each network as what it is: EFA, RoCE, InfiniBand, a rack of NVLink. Counts rows of 1 MiB
 * and more without those that set constants. A p5 described as InfiniBand is 25 to 35 % too fast
 * here. */
static void test_networks(void)
{
    double sum = 0.0, worst = 0.0;
    char last[96] = "", key[96];
    int n = 0, all = 0;
    net_row r;
    FILE *f = net_open("tests/data/cost");
    CHECK(f != NULL);
    while (f != NULL) {
        const int more = net_next(f, &r);
        snprintf(key, sizeof key, "%.30s, %.10s of %d", r.cell[4] ? r.cell[4] : "",
                 r.cell[5] ? r.cell[5] : "", r.ranks);
        if (n > 0 && (!more || strcmp(last, key) != 0)) {
            printf("%-50s %2d rows %5.1f %%, largest %.1f\n", last, n, 100.0 * sum / n,
                   100.0 * worst);
            CHECK(sum / n <=
                  (strstr(last, "gIB") != NULL || strstr(last, "NVLink") != NULL ? 0.17 : 0.15));
            sum = worst = n = 0;
        }
        if (!more) {
            break;
        }
        snprintf(last, sizeof last, "%s", key);
        if (!r.marked && r.bytes >= 1e6) {
            const double error = fabs(r.predicted_us / r.us - 1.0);
            sum += error;
            worst = fmax(worst, error);
            n++;
            all++;
        }
    }
    CHECK_INT(all, 88);
    if (f != NULL) {
        fclose(f);
    }
}

/* Compares nccl_tuner.h with NCCL's own code, without dpar, because test_measured uses it as the
 * bar. NCCL's tuner as in the facts: 12 x 20 and 18 x 20.6 GB/s at large sizes; its errors over
 * whole curves are 31.6 % (8.8 % from 64 MB), 14.6 (6.8), 15.7 (6.6). */
static void test_tuner(void)
{
    static const double expected[3][2] = {{.316, .088}, {.146, .068}, {.157, .066}};
    FILE *f = open_table("tests/data/cost/nccl_tests.csv");
    dpar_cluster a100 = machine("1x8:a100-80"), h100 = machine("1x8:h100-80"), c;
    double sum[3][2] = {{0}}, t = 0.0;
    int n[3][2] = {{0}}, i;
    const char *algorithm = "", *protocol = "";
    dpar_cluster_group g = group_of(&a100, 8, 1);
    row r;
    CHECK_INT(nccl_tuner(&a100, &g, DPAR_CALL_ALL_REDUCE, 1e12, &t, &algorithm, &protocol), 0);
    CHECK_NEAR(1e12 / t * 1.75, 240e9, 1e-3);
    CHECK_TEXT(algorithm, "ring");
    CHECK_TEXT(protocol, "simple");
    CHECK_INT(nccl_tuner(&h100, &g, DPAR_CALL_ALL_GATHER, 1e12, &t, &algorithm, &protocol), 0);
    CHECK_NEAR(1e12 / t * 0.875, 370.8e9, 1e-3);
    CHECK_INT(nccl_tuner(&h100, &g, DPAR_CALL_ALL_REDUCE, 1e9, &t, &algorithm, &protocol), 0);
    CHECK_TEXT(algorithm, "nvls");
    while (f != NULL && read_row(f, &r)) {
        i = r.group == A100 ? 0 : r.group == H100_AGRS ? r.kind - DPAR_CALL_ALL_REDUCE : -1;
        if (i >= 0) {
            CHECK_INT(
                nccl_tuner(i == 0 ? &a100 : &h100, &g, r.kind, r.bytes, &t, &algorithm, &protocol),
                DPAR_OK);
            sum[i][0] += fabs(t * 1e6 / r.us - 1.0);
            n[i][0]++;
            if (r.bytes >= 67108864.0) {
                sum[i][1] += fabs(t * 1e6 / r.us - 1.0);
                n[i][1]++;
            }
        }
    }
    for (i = 0; i < 3; i++) {
        static const char *const name[] = {"A100 all-reduce", "H100 all-gather",
                                           "H100 reduce-scatter"};
        printf("NCCL's tuner, %-20s all sizes %5.1f %%, from 64 MB %5.1f %%\n", name[i],
               100.0 * sum[i][0] / n[i][0], 100.0 * sum[i][1] / n[i][1]);
        CHECK_NEAR(sum[i][0] / n[i][0], expected[i][0], 0.01);
        CHECK_NEAR(sum[i][1] / n[i][1], expected[i][1], 0.01);
    }
    if (f != NULL) {
        fclose(f);
    }
    c = machine("16x8:h100-80,nic=8x50,sharp=1"); /* every algorithm is best somewhere */
    g = group_of(&c, 128, 1);
    CHECK_INT(nccl_tuner(&c, &g, DPAR_CALL_ALL_REDUCE, 1e8, &t, &algorithm, &protocol), DPAR_OK);
    CHECK(strcmp(algorithm, "ring") != 0 && t > 0.0);
    g = group_of(&c, 16, 8);
    CHECK_INT(nccl_tuner(&c, &g, DPAR_CALL_ALL_GATHER, 1e5, &t, &algorithm, &protocol), DPAR_OK);
    CHECK_INT(nccl_tuner(&c, &g, DPAR_CALL_BROADCAST, 1e8, &t, &algorithm, &protocol), DPAR_OK);
    CHECK_TEXT(algorithm, "ring");
    CHECK_INT(nccl_tuner(&c, &g, DPAR_CALL_ALL_TO_ALL, 1e8, &t, &algorithm, &protocol),
              DPAR_E_UNKNOWN);
    CHECK_INT(nccl_tuner(&c, &g, -1, 1e8, &t, &algorithm, &protocol), DPAR_E_UNKNOWN);
    c = machine("2x8:mi300x");
    CHECK_INT(nccl_tuner(&c, &g, DPAR_CALL_ALL_REDUCE, 1e8, &t, &algorithm, &protocol),
              DPAR_E_UNKNOWN);
}

/* ---- the tables that calibrate: how well the formulas fit ------------------------------------ */

static void fit_of_vtrain(const char *file, const char *text, const char *name, double bar)
{
    FILE *f = open_table(file);
    dpar_cluster c = machine(text);
    double sum[9] = {0}, all = 0.0;
    int n[9] = {0}, total = 0, i;
    char line[256], cell[64];
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        int gpus = (int)column(line, 0, cell);
        double bytes = column(line, 1, cell), us = column(line, 2, cell);
        double error =
            fabs(cost_of(&c, gpus, 1, DPAR_CALL_ALL_REDUCE, bytes).seconds * 1e6 / us - 1.0);
        sum[gpus] += error;
        n[gpus]++;
        all += error;
        total++;
    }
    printf("fit of %s, %d rows: %.1f %%;", name, total, 100.0 * all / total);
    for (i = 2; i <= 8; i++) {
        printf("  %d: %.1f", i, n[i] ? 100.0 * sum[i] / n[i] : 0.0);
    }
    printf("\n");
    CHECK(total > 200 && all / total <= bar);
    if (f != NULL) {
        fclose(f);
    }
}

/* Compares with SimAI's share of the NICs (8 x 50 GB/s per node), columns 2 to 128 nodes of 8;
 * measured on rings of all kinds, compared with the all-gather's. Returns the mean error of the
 * time. */
static void fit_of_simai(const char *file, int kind, const char *name, double bar)
{
    FILE *f = open_table(file);
    double sum[8] = {0}, all = 0.0;
    int n[8] = {0}, total = 0, k;
    char line[256], cell[64];
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        double bytes = column(line, 0, cell);
        for (k = 1; k <= 7; k++) {
            double share = column(line, 1 + k, cell), ranks = 8 << k, wire, error;
            dpar_cluster c = machine("128x8:h100-80,nic=8x50");
            if (share <= 0.0) {
                continue;
            }
            c.nodes = 1 << k;
            wire = kind == DPAR_CALL_ALL_TO_ALL ? bytes * (ranks - 8) / ranks / 50e9
                                                : bytes * (ranks - 1) / ranks / 400e9;
            error = fabs(cost_of(&c, 8 << k, 1, kind, bytes).seconds / (wire / share) - 1.0);
            sum[k] += error;
            n[k]++;
            all += error;
            total++;
        }
    }
    printf("fit of SimAI's %s, %d cells: %.1f %%; nodes", name, total, 100.0 * all / total);
    for (k = 1; k <= 7 && n[k] > 0; k++) {
        printf("  %d: %.1f", 1 << k, 100.0 * sum[k] / n[k]);
    }
    printf("\n");
    CHECK(total > 40 && all / total <= bar);
    if (f != NULL) {
        fclose(f);
    }
}

/* Compares with SimAI's ring in one node of NVLink (its A100: 20 x 12 of 300 GB/s). */
static void fit_of_nvlink(void)
{
    FILE *f = open_table("tests/data/cost/simai_nvlink_efficiency.csv");
    dpar_cluster c = machine("1x8:a100-80");
    double all = 0.0;
    int total = 0;
    char line[256], cell[64];
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        double bytes = column(line, 0, cell), share = column(line, 1, cell);
        all += fabs(cost_of(&c, 8, 1, DPAR_CALL_ALL_REDUCE, bytes).seconds * 300e9 * share /
                        (1.75 * bytes) -
                    1.0);
        total++;
    }
    printf("fit of SimAI's ring in a node, %d cells: %.1f %%\n", total, 100.0 * all / total);
    CHECK(total == 11 && all / total <= 0.06);
    if (f != NULL) {
        fclose(f);
    }
}

/* Checks that measured calls take precedence over the formulas: at the points, between and beyond
 * them; for other ranks and kinds by steps and bytes; across nodes together with the node's own. */
static void test_curves(void)
{
    dpar_cluster c = machine("2x2:core,link_reduce=2x1000x1,link_reduce=2x3000x2,"
                             "link_reduce=2x4000x4,net_reduce=2x1000x10,net_reduce=2x2000x20,"
                             "link_send=2x1000x0.5,net_send=2x1000x5,net_send=2x3000x7");
    dpar_cluster_group in = group_of(&c, 2, 1), apart = group_of(&c, 2, 2),
                       all = group_of(&c, 4, 1);
    static const double at[] = {1, 1000, 2000, 3000, 3500, 4000, 6000};
    static const double us[] = {1, 1, 1.5, 2, 3, 4, 8};
    dpar_collective_cost cost;
    int i;
    for (i = 0; i < 7; i++) {
        dpar_collective_predict(&c, &in, DPAR_CALL_ALL_REDUCE, at[i], &cost);
        CHECK_NEAR(cost.seconds, us[i] * 1e-6, 1e-12);
        CHECK_NEAR(cost.link_bytes, at[i], 1e-12);
    }
    /* half the bytes and half the steps of an all-reduce */
    dpar_collective_predict(&c, &in, DPAR_CALL_ALL_GATHER, 6000, &cost);
    CHECK_NEAR(cost.seconds, (2 - 0.5) * 1e-6, 1e-12);
    dpar_collective_predict(&c, &in, DPAR_CALL_BARRIER, 0, &cost);
    CHECK_NEAR(cost.seconds, 0.5e-6, 1e-12);
    dpar_collective_predict(&c, &in, DPAR_CALL_SEND_RECV, 9000, &cost);
    CHECK_NEAR(cost.seconds, 0.5e-6, 1e-12); /* one point: it determines no rate */
    dpar_collective_predict(&c, &apart, DPAR_CALL_SEND_RECV, 2000, &cost);
    CHECK_NEAR(cost.seconds, 6e-6, 1e-12);
    CHECK_NEAR(cost.nic_bytes, 2000, 1e-12);
    dpar_collective_predict(&c, &apart, DPAR_CALL_ALL_REDUCE, 2000, &cost);
    CHECK_NEAR(cost.seconds, 20e-6, 1e-12);
    /* four ranks on two nodes: in the node all of it, between nodes half */
    dpar_collective_predict(&c, &all, DPAR_CALL_ALL_REDUCE, 3000, &cost);
    CHECK_NEAR(cost.seconds, (15 + 2) * 1e-6, 1e-12);
    CHECK_INT(cost.algorithm, DPAR_ALG_HIERARCHICAL);
    /* a node of four from a call of two ranks: three times the steps, 3/2 of the bytes */
    c = machine("1x4:core,link_reduce=2x1000x1,link_reduce=2x3000x2");
    in = group_of(&c, 4, 1);
    dpar_collective_predict(&c, &in, DPAR_CALL_ALL_REDUCE, 2000, &cost);
    CHECK_NEAR(cost.seconds, (2 + 2) * 1e-6, 1e-12);
}

int main(void)
{
    test_names();
    test_curves();
    test_placement();
    test_textbook();
    test_hierarchy();
    test_sharing();
    test_rules();
    test_monotone();
    test_torus();
    test_measured();
    test_networks();
    test_tuner();
    fit_of_vtrain("tests/data/cost/vtrain_allreduce_a100.csv", "1x8:a100-80",
                  "vTrain's A100 all-reduce", 0.12);
    fit_of_vtrain("tests/data/cost/vtrain_allreduce_v100.csv", "dgx-v100",
                  "vTrain's V100 all-reduce", 0.12);
    fit_of_simai("tests/data/cost/simai_nic_efficiency.csv", DPAR_CALL_ALL_GATHER, "rings", 0.09);
    fit_of_simai("tests/data/cost/simai_alltoall_efficiency.csv", DPAR_CALL_ALL_TO_ALL,
                 "all-to-all", 0.09);
    fit_of_nvlink();
    return CHECK_DONE();
}
