/* SPDX-License-Identifier: MIT-0 */
/* Tests schedule_show: pictures of schedules whose times are known by hand (F = I = W = 1, B = 2,
 * no latency), worked out here by relaxation so that this test needs no simulator. Run with:
 * tests/run test schedule. */
#include "dpar_cost.h"

#include "check.h"
#include "data_lines.h"
#include "schedule_calls.h"

#include <stdlib.h>

enum { MOST = 4096 };
/* The output that test_small expects: the pictures were looked at once and then kept. */
static const char SMALL_TEXT[] =
    "small\n"
    "2 ranks, 4 stages, 12 micro-batches, makespan 10; 60 columns = 10\n"
    "rank 0 |~~~F10---...f0*******B11******.........W3-~~~~~~~~~~~~r4----|\n"
    "rank 1 |...............F10---i2-....................................|\n"
    "time    0              2.5            5              7.5\n"
    "F forward  B backward  I input gradient  W weight gradient  R recompute  ~ collective  * "
    "overlapped  . idle\n"
    "lower case: a rank's odd chunks\n";
static const char SMALL_SVG[] =
    "</defs>\n"
    "<title>small</title>\n"
    "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    "<text class=\"h\" x=\"20\" y=\"30\">small</text>\n"
    "<text class=\"s\" x=\"20\" y=\"50\">2 ranks, 4 stages, 12 micro-batches, makespan 20; "
    "numbers: micro-batches; paler: later chunks of the rank</text>\n"
    "<rect class=\"F0\" x=\"20\" y=\"60\" width=\"12\" height=\"12\"/><text class=\"s\" x=\"37\" "
    "y=\"70.5\">F forward</text>\n"
    "<rect class=\"B0\" x=\"119.4\" y=\"60\" width=\"12\" height=\"12\"/><text class=\"s\" "
    "x=\"136.4\" y=\"70.5\">B backward</text>\n"
    "<rect class=\"I0\" x=\"225.4\" y=\"60\" width=\"12\" height=\"12\"/><text class=\"s\" "
    "x=\"242.4\" y=\"70.5\">I input gradient</text>\n"
    "<rect class=\"W0\" x=\"371\" y=\"60\" width=\"12\" height=\"12\"/><text class=\"s\" x=\"388\" "
    "y=\"70.5\">W weight gradient</text>\n"
    "<rect class=\"R0\" x=\"523.2\" y=\"60\" width=\"12\" height=\"12\"/><text class=\"s\" "
    "x=\"540.2\" y=\"70.5\">R recompute</text>\n"
    "<rect class=\"z\" x=\"635.8\" y=\"60\" width=\"12\" height=\"12\"/><text class=\"s\" "
    "x=\"652.8\" y=\"70.5\">idle</text>\n"
    "<rect class=\"U\" x=\"702.2\" y=\"60\" width=\"12\" height=\"12\"/><text class=\"s\" "
    "x=\"719.2\" y=\"70.5\">unshard</text>\n"
    "<rect class=\"G\" x=\"788.4\" y=\"60\" width=\"12\" height=\"12\"/><text class=\"s\" "
    "x=\"805.4\" y=\"70.5\">reduce gradients</text>\n"
    "<path class=\"g\" d=\"M72 78V188\"/><text class=\"a\" x=\"72\" y=\"203\">0</text>\n"
    "<path class=\"g\" d=\"M151.2 78V188\"/><text class=\"a\" x=\"151.2\" y=\"203\">2</text>\n"
    "<path class=\"g\" d=\"M230.4 78V188\"/><text class=\"a\" x=\"230.4\" y=\"203\">4</text>\n"
    "<path class=\"g\" d=\"M309.6 78V188\"/><text class=\"a\" x=\"309.6\" y=\"203\">6</text>\n"
    "<path class=\"g\" d=\"M388.8 78V188\"/><text class=\"a\" x=\"388.8\" y=\"203\">8</text>\n"
    "<path class=\"g\" d=\"M468 78V188\"/><text class=\"a\" x=\"468\" y=\"203\">10</text>\n"
    "<path class=\"g\" d=\"M547.2 78V188\"/><text class=\"a\" x=\"547.2\" y=\"203\">12</text>\n"
    "<path class=\"g\" d=\"M626.4 78V188\"/><text class=\"a\" x=\"626.4\" y=\"203\">14</text>\n"
    "<path class=\"g\" d=\"M705.6 78V188\"/><text class=\"a\" x=\"705.6\" y=\"203\">16</text>\n"
    "<path class=\"g\" d=\"M784.8 78V188\"/><text class=\"a\" x=\"784.8\" y=\"203\">18</text>\n"
    "<path class=\"g\" d=\"M864 78V188\"/><text class=\"a\" x=\"864\" y=\"203\">20</text>\n"
    "<text class=\"s\" x=\"20\" y=\"203\">time</text>\n"
    "<text class=\"e\" x=\"63\" y=\"103.5\">rank 0</text>\n"
    "<rect class=\"z\" x=\"72\" y=\"84\" width=\"792\" height=\"30\"/><g><title>0UNSHARD on rank "
    "0, 0 to 1</title><rect class=\"U\" x=\"72\" y=\"115\" width=\"39.6\" height=\"6\"/></g>\n"
    "<g><title>0F10 on rank 0, 1 to 3</title><rect class=\"F0\" x=\"111.6\" y=\"84\" "
    "width=\"79.2\" height=\"30\"/><text class=\"n\" x=\"151.2\" y=\"103\">10</text></g>\n"
    "<g><title>(2F0;0B11)OVERLAP_F_B on rank 0, 4 to 10</title><rect class=\"F1\" x=\"230.4\" "
    "y=\"84\" width=\"237.6\" height=\"15\"/><text class=\"q\" x=\"349.2\" "
    "y=\"94.4\">0</text><rect class=\"B0\" x=\"230.4\" y=\"99\" width=\"237.6\" "
    "height=\"15\"/><text class=\"q\" x=\"349.2\" y=\"109.4\">11</text></g>\n"
    "<g><title>0W3 on rank 0, 13 to 14</title><rect class=\"W0\" x=\"586.8\" y=\"84\" "
    "width=\"39.6\" height=\"30\"/><text class=\"n\" x=\"606.6\" y=\"103\">3</text></g>\n"
    "<g><title>0REDUCE_GRAD on rank 0, 14 to 18</title><rect class=\"G\" x=\"626.4\" y=\"115\" "
    "width=\"158.4\" height=\"6\"/></g>\n"
    "<g><title>2RECOMPUTE4 on rank 0, 18 to 20</title><rect class=\"R1\" x=\"784.8\" y=\"84\" "
    "width=\"79.2\" height=\"30\"/><text class=\"n\" x=\"824.4\" y=\"103\">4</text></g>\n"
    "<text class=\"p\" x=\"872\" y=\"103\">20 % idle</text>\n"
    "<text class=\"e\" x=\"63\" y=\"155.5\">rank 1</text>\n"
    "<rect class=\"z\" x=\"72\" y=\"136\" width=\"792\" height=\"30\"/><g><title>1F10 on rank 1, 5 "
    "to 7</title><rect class=\"F0\" x=\"270\" y=\"136\" width=\"79.2\" height=\"30\"/><text "
    "class=\"n\" x=\"309.6\" y=\"155\">10</text></g>\n"
    "<g><title>3I2 on rank 1, 7 to 8</title><rect class=\"I1\" x=\"349.2\" y=\"136\" "
    "width=\"39.6\" height=\"30\"/><text class=\"n\" x=\"369\" y=\"155\">2</text></g>\n"
    "<text class=\"p\" x=\"872\" y=\"155\">85 % idle</text>\n"
    "<line class=\"f\" x1=\"190.8\" y1=\"114\" x2=\"270\" y2=\"136\" "
    "marker-end=\"url(#dpar-f)\"/>\n"
    "<line class=\"b\" x1=\"547.2\" y1=\"136\" x2=\"586.8\" y2=\"114\" "
    "marker-end=\"url(#dpar-b)\"/>\n"
    "</svg>\n";
static const char SMALL_TRACE[] =
    "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"title\":\"pipeline "
    "schedule\"},\"traceEvents\":[\n"
    "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"process_labels\",\"args\":{\"labels\":\"dpar\"}},"
    "\n"
    "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"rank 0\"}},\n"
    "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"thread_name\",\"args\":{\"name\":\"compute\"}},\n"
    "{\"ph\":\"M\",\"pid\":0,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"send "
    "forward\"}},\n"
    "{\"ph\":\"M\",\"pid\":0,\"tid\":2,\"name\":\"thread_name\",\"args\":{\"name\":\"receive "
    "forward\"}},\n"
    "{\"ph\":\"M\",\"pid\":0,\"tid\":3,\"name\":\"thread_name\",\"args\":{\"name\":\"send "
    "backward\"}},\n"
    "{\"ph\":\"M\",\"pid\":0,\"tid\":4,\"name\":\"thread_name\",\"args\":{\"name\":\"receive "
    "backward\"}},\n"
    "{\"ph\":\"M\",\"pid\":0,\"tid\":5,\"name\":\"thread_name\",\"args\":{\"name\":\"other\"}},\n"
    "{\"ph\":\"X\",\"pid\":0,\"tid\":5,\"ts\":0,\"dur\":0.5,\"name\":\"0UNSHARD\",\"cat\":"
    "\"communication\",\"args\":{\"stage\":0}},\n"
    "{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":0.5,\"dur\":1,\"name\":\"0F10\",\"cat\":\"compute\","
    "\"args\":{\"stage\":0,\"micro\":10}},\n"
    "{\"ph\":\"X\",\"pid\":0,\"tid\":1,\"ts\":1.5,\"dur\":1,\"name\":\"0SEND_F10\",\"cat\":"
    "\"communication\",\"args\":{\"stage\":0,\"micro\":10,\"peer\":1}},\n"
    "{\"ph\":\"s\",\"pid\":0,\"tid\":1,\"ts\":1.5,\"name\":\"message\",\"cat\":\"communication\","
    "\"id\":131092},\n"
    "{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":2,\"dur\":3,\"name\":\"(2F0;0B11)OVERLAP_F_B\","
    "\"cat\":\"compute\",\"args\":{\"stage\":2,\"micro\":0}},\n"
    "{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":2,\"dur\":3,\"name\":\"2F0\",\"cat\":\"compute\","
    "\"args\":{\"stage\":2,\"micro\":0}},\n"
    "{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":2,\"dur\":3,\"name\":\"0B11\",\"cat\":\"compute\","
    "\"args\":{\"stage\":0,\"micro\":11}},\n"
    "{\"ph\":\"X\",\"pid\":0,\"tid\":4,\"ts\":6,\"dur\":0.5,\"name\":\"0RECV_B10\",\"cat\":"
    "\"communication\",\"args\":{\"stage\":0,\"micro\":10,\"peer\":1}},\n"
    "{\"ph\":\"f\",\"pid\":0,\"tid\":4,\"ts\":6,\"bp\":\"e\",\"name\":\"message\",\"cat\":"
    "\"communication\",\"id\":131093},\n"
    "{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":6.5,\"dur\":0.5,\"name\":\"0W3\",\"cat\":\"compute\","
    "\"args\":{\"stage\":0,\"micro\":3}},\n"
    "{\"ph\":\"X\",\"pid\":0,\"tid\":5,\"ts\":7,\"dur\":2,\"name\":\"0REDUCE_GRAD\",\"cat\":"
    "\"communication\",\"args\":{\"stage\":0}},\n"
    "{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":9,\"dur\":1,\"name\":\"2RECOMPUTE4\",\"cat\":"
    "\"compute\",\"args\":{\"stage\":2,\"micro\":4}},\n"
    "{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"rank 1\"}},\n"
    "{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"thread_name\",\"args\":{\"name\":\"compute\"}},\n"
    "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"send "
    "forward\"}},\n"
    "{\"ph\":\"M\",\"pid\":1,\"tid\":2,\"name\":\"thread_name\",\"args\":{\"name\":\"receive "
    "forward\"}},\n"
    "{\"ph\":\"M\",\"pid\":1,\"tid\":3,\"name\":\"thread_name\",\"args\":{\"name\":\"send "
    "backward\"}},\n"
    "{\"ph\":\"M\",\"pid\":1,\"tid\":4,\"name\":\"thread_name\",\"args\":{\"name\":\"receive "
    "backward\"}},\n"
    "{\"ph\":\"M\",\"pid\":1,\"tid\":5,\"name\":\"thread_name\",\"args\":{\"name\":\"other\"}},\n"
    "{\"ph\":\"X\",\"pid\":1,\"tid\":2,\"ts\":1.5,\"dur\":1,\"name\":\"1RECV_F10\",\"cat\":"
    "\"communication\",\"args\":{\"stage\":1,\"micro\":10,\"peer\":0}},\n"
    "{\"ph\":\"f\",\"pid\":1,\"tid\":2,\"ts\":1.5,\"bp\":\"e\",\"name\":\"message\",\"cat\":"
    "\"communication\",\"id\":131092},\n"
    "{\"ph\":\"X\",\"pid\":1,\"tid\":0,\"ts\":2.5,\"dur\":1,\"name\":\"1F10\",\"cat\":\"compute\","
    "\"args\":{\"stage\":1,\"micro\":10}},\n"
    "{\"ph\":\"X\",\"pid\":1,\"tid\":0,\"ts\":3.5,\"dur\":0.5,\"name\":\"3I2\",\"cat\":\"compute\","
    "\"args\":{\"stage\":3,\"micro\":2}},\n"
    "{\"ph\":\"X\",\"pid\":1,\"tid\":3,\"ts\":6,\"dur\":0.5,\"name\":\"1SEND_B10\",\"cat\":"
    "\"communication\",\"args\":{\"stage\":1,\"micro\":10,\"peer\":0}},\n"
    "{\"ph\":\"s\",\"pid\":1,\"tid\":3,\"ts\":6,\"name\":\"message\",\"cat\":\"communication\","
    "\"id\":131093}\n"
    "]}\n";
static const char SMALL_HEAD[] =
    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 964 218\">";

static char csv[1 << 15], picture[1 << 20];
static int64_t memory[1 << 14], start[MOST], end[MOST];
static dpar_schedule plan;

/* Returns when what this action waits for ends; -1 if not known yet. */
static int64_t ready(int32_t kind, int32_t stage, int32_t micro, const char *known)
{
    int32_t forward = kind == DPAR_ACTION_FORWARD || kind == DPAR_ACTION_RECV_F;
    int32_t from = forward ? dpar_schedule_partner(&plan, DPAR_ACTION_RECV_F, stage)
                           : dpar_schedule_partner(&plan, DPAR_ACTION_SEND_F, stage);
    int64_t k;
    if (from < 0 || kind == DPAR_ACTION_IDLE || kind == DPAR_ACTION_WEIGHT ||
        kind > DPAR_ACTION_RECV_B || kind == DPAR_ACTION_SEND_F || kind == DPAR_ACTION_SEND_B) {
        return 0;
    }
    for (k = 0; k < plan.begin[plan.ranks]; k++) {
        const dpar_action *a = &plan.action[k];
        if (a->stage == from && a->micro_batch == micro &&
            (forward ? a->kind == DPAR_ACTION_FORWARD
                     : a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_INPUT)) {
            return known[k] ? end[k] : -1;
        }
    }
    return -1;
}

/* Reads a list and computes its times. */
static void timed(const char *text, int32_t chain)
{
    static char known[MOST];
    int64_t k, went = 1;
    int32_t r;
    CHECK_INT(read_csv(&plan, text, strlen(text), chain, memory, sizeof memory, NULL), 0);
    memset(known, 0, sizeof known);
    while (went) {
        went = 0;
        for (r = 0; r < plan.ranks; r++) {
            int64_t free = 0;
            for (k = plan.begin[r]; k < plan.begin[r + 1]; k += 1 + plan.action[k].joined) {
                const dpar_action *a = &plan.action[k];
                int64_t at = ready(a->kind, a->stage, a->micro_batch, known), b = 0;
                int64_t length = a->kind > DPAR_ACTION_WEIGHT || a->kind == DPAR_ACTION_IDLE ? 0
                                 : a->kind == DPAR_ACTION_BACKWARD                           ? 2
                                                                                             : 1;
                if (a->joined) {
                    b = ready(a[1].kind, a[1].stage, a[1].micro_batch, known);
                    length = 3;
                }
                if (at < 0 || b < 0) {
                    break;
                }
                at = at > b ? at : b;
                start[k] = at > free ? at : free; /* a receive holds nothing up: it ends later */
                end[k] = start[k] + length;
                free = is_receive(a) ? free : end[k];
                went += !known[k];
                known[k] = 1;
                if (a->joined) {
                    start[k + 1] = start[k];
                    end[k + 1] = end[k];
                    known[k + 1] = 1;
                }
            }
        }
    }
}

static void file(const char *name, int32_t chain)
{
    (void)data_lines(name, csv, sizeof csv);
    timed(csv, chain);
}

static dpar_schedule_draw_desc gantt(int64_t unit, const char *title)
{
    dpar_schedule_draw_desc g;
    g.schedule = &plan;
    g.start = start;
    g.end = end;
    g.unit = unit;
    g.title = title;
    g.width = 0;
    return g;
}

static const char *text(int64_t unit, const char *title, int32_t width)
{
    dpar_schedule_draw_desc g = gantt(unit, title);
    dpar_text t;
    g.width = width;
    dpar_text_init(&t, picture, sizeof picture);
    CHECK_INT(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TEXT, NULL), DPAR_OK);
    CHECK(t.used < sizeof picture);
    return picture;
}

/* ---- characters: figures of the papers, by hand ---------------------------------------------- */

static void test_text(void)
{
    static char long_title[400];
    file("1f1b_p4_m8", 0); /* makespan 33 (metrics.tsv) at two columns a step */
    CHECK_TEXT(text(1, "1F1B", 80),
               "1F1B\n"
               "4 ranks, 4 stages, 8 micro-batches, makespan 33; 66 columns = 33\n"
               "rank 0 |F0F1F2F3............B0--F4B1--F5B2--F6B3--F7B4--..B5--..B6--..B7--|\n"
               "rank 1 |..F0F1F2........B0--F3B1--F4B2--F5B3--F6B4--F7B5--..B6--..B7--....|\n"
               "rank 2 |....F0F1....B0--F2B1--F3B2--F4B3--F5B4--F6B5--F7B6--..B7--........|\n"
               "rank 3 |......F0B0--F1B1--F2B2--F3B3--F4B4--F5B5--F6B6--F7B7--............|\n"
               "time    0         5         10        15        20        25        30\n"
               "F forward  B backward  . idle\n");
    /* one column per step, as papers print it */
    CHECK_TEXT(text(1, NULL, 64),
               "4 ranks, 4 stages, 8 micro-batches, makespan 33; 33 columns = 33\n"
               "rank 0 |0123......AA4BB5CC6DD7EE.FF.GG.HH|\n"
               "rank 1 |.012....AA3BB4CC5DD6EE7FF.GG.HH..|\n"
               "rank 2 |..01..AA2BB3CC4DD5EE6FF7GG.HH....|\n"
               "rank 3 |...0AA1BB2CC3DD4EE5FF6GG7HH......|\n"
               "time    0         10        20\n"
               "0-9 forward  A-Z backward  . idle\n"
               "digits and letters: the micro-batch, from 0 and A, round and round\n");
    /* times in units of 2 ticks: 33 becomes 16.5 */
    CHECK(strstr(text(2, NULL, 64), "makespan 16.5; 33 columns = 16.5\n") != NULL);
    CHECK(strstr(text(1000000, NULL, 64), "makespan 0.000033;") != NULL);
    /* 33 steps in 23 columns: scaled, which the text states */
    CHECK(strstr(text(1, NULL, 32), "; scaled: 23 columns = 33\nrank 0 |") != NULL);
    file("zb_h1_p4_m8", 0); /* makespan 27 */
    CHECK(strstr(text(1, NULL, 80), "rank 3 |......F0I0F1I1F2I2F3I3W0F4I4W1F5I5W2F6I6W3F7I7W4W5W6"
                                    "W7|\n") != NULL);
    file("pt_dualpipev_p4_m10", 0); /* makespan 66 */
    CHECK(strstr(text(1, NULL, 80),
                 "rank 3 |...001122334AA44A55B55B66C66C77D77D88E88E99F99FGGGG.HHHH.ii.jj++++|\n") !=
          NULL);
    CHECK(strstr(text(1, NULL, 150), "rank 3 |......F0f0F1f1F2f2F3f3F4b0--f4*B0*F5*b1*f5*B1*") !=
          NULL);
    CHECK(strstr(picture, "* overlapped") != NULL);
    timed("0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\n", 0); /* two chunks on one rank */
    CHECK(strstr(text(1, NULL, 80), "rank 0 |F0F1f0f1b0--b1--B0--B1--|\n") != NULL);
    timed("0UNSHARD,0F0,0B0,0REDUCE_GRAD\n", 0);
    end[3] = start[3] + 2;
    CHECK(strstr(text(1, NULL, 80), "rank 0 |F0B0--~~~~|\n") != NULL);
    CHECK(strstr(picture, "~ collective") != NULL);
    memset(long_title, 'x', sizeof long_title - 1);
    CHECK(strncmp(text(1, long_title, 32), long_title, sizeof long_title - 1) == 0);
    timed("\n0F0\n", 0); /* a rank without actions */
    CHECK(strstr(text(1, NULL, 80), "rank 0 |..|\nrank 1 |F0|\n") != NULL);
    timed("0SEND_F0\n1RECV_F0\n", 0); /* no action takes time */
    memset(start, 0, sizeof start);
    memset(end, 0, sizeof end);
    CHECK(strstr(text(1, NULL, 80), "makespan 0;") != NULL);
}

/* Checks two digits of a rank and of a micro-batch, letters and digits that begin again, and
 * thirds. */
static void svg(const char *title);

static void test_many(void)
{
    char list[600];
    int i, n = 0;
    for (i = 0; i < 11; i++) {
        n += snprintf(list + n, sizeof list - (size_t)n, "%dF0\n", i);
    }
    timed(list, 0);
    CHECK_TEXT(strstr(text(3, NULL, 32), "rank  9"), "rank  9 |..................F0..|\n"
                                                     "rank 10 |....................F0|\n"
                                                     "time     0         1.666\n"
                                                     "F forward  . idle\n");
    for (i = 0, n = 0; i < 28; i++) {
        n += snprintf(list + n, sizeof list - (size_t)n, "0F%d,", i);
    }
    for (i = 0; i < 28; i++) {
        n += snprintf(list + n, sizeof list - (size_t)n, "0B%d%s", i, i < 27 ? "," : "\n");
    }
    timed(list, 0); /* 28 F of 1, 28 B of 2: 84 */
    CHECK(
        strstr(text(3, NULL, 84 + 9),
               "rank 0 |0123456789012345678901234567AABBCCDDEEFFGGHHIIJJKKLLMMNNOOPPQQRRSSTTUUVVWW"
               "XXYYZZAABB|\n") != NULL);
    CHECK(strstr(text(3, NULL, 83 + 9), "scaled: 83 columns = 28\n") != NULL);
    CHECK(strstr(text(3, NULL, 3 * 84 + 9), "|F0-F1-F2-") != NULL);
    CHECK(strstr(text(3, NULL, 3 * 84 + 8), "|0123456789") != NULL);
    (void)text(3, NULL, 4096);
    svg(NULL); /* 18 pixels per forward: two digits fit in the larger letters */
    CHECK(strstr(picture, "<text class=\"n\" x=\"261\" y=\"103\">10</text>") != NULL);
    CHECK(strstr(picture, "0F10 on rank 0, 10 to 11<") != NULL);
}

/* Checks that lines of a chart are at most as wide as requested, for every width. */
static void test_widths(void)
{
    static const char *const name[] = {"zbv_p4_m8", "1f1b_p4_m8", "vmin_p4_m8", "dualpipe_p4_m8"};
    size_t i;
    int32_t width;
    for (i = 0; i < sizeof name / sizeof name[0]; i++) {
        file(name[i], i == 3 ? 4 : 0);
        for (width = 32; width < 300; width++) {
            const char *at = text(1, NULL, width), *line = strstr(at, "\nrank 0");
            int r;
            for (r = 0; r < 4 && line != NULL; r++) {
                const char *next = strchr(line + 1, '\n');
                CHECK(next != NULL && next - line - 1 <= width && next[-1] == '|');
                line = next;
            }
            for (; *at != 0 && *at >= '\n' && *at < 127; at++) {
            }
            CHECK(*at == 0);
        }
    }
}

/* ---- XML and JSON ---------------------------------------------------------------------------- */

static int64_t count(const char *what)
{
    const char *at = picture;
    int64_t n = 0;
    while ((at = strstr(at, what)) != NULL) {
        at += strlen(what);
        n++;
    }
    return n;
}

static void svg(const char *title)
{
    dpar_schedule_draw_desc g = gantt(1, title);
    dpar_text t, none;
    dpar_text_init(&t, picture, sizeof picture);
    CHECK_INT(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_SVG, NULL), DPAR_OK);
    CHECK(t.used < sizeof picture);
    dpar_text_init(&none, NULL, 0); /* counting only */
    CHECK_INT(dpar_schedule_draw(&none, &g, DPAR_SCHEDULE_DRAW_SVG, NULL), DPAR_OK);
    CHECK_INT(none.used, t.used);
}

static void read_trace(int64_t slices, int64_t arrows);

static void test_svg(void)
{
    static const char *const pair[] = {"<g>",     "</g>",     "<text",      "</text>",
                                       "<title>", "</title>", "<rect",      "<line",
                                       "<svg",    "</svg>",   "<pattern id"};
    int k, n = 0;
    file("1f1b_p4_m8_comms", 0);
    svg("<A & \"B\">\n");
    CHECK(strstr(picture, "''A ' 'B''?") == NULL && strstr(picture, "'A ' 'B''?") != NULL);
    CHECK_INT(count("<g><title>"), 64);           /* 8 F and 8 B on 4 ranks */
    CHECK_INT(count("<line"), 2 * 3 * 8);         /* 3 edges, 8 micro-batches, both directions */
    CHECK_INT(count("<line class=\"f\""), 3 * 8); /* all between neighbours */
    CHECK_INT(count("class=\"F0\""), 33);         /* and one in the legend */
    CHECK(strstr(picture, "<g><title>3B7 on rank 3, 25 to 27</title>") != NULL);
    CHECK(strstr(picture, "27.3 % idle") != NULL); /* 9 of 33 */
    CHECK_INT(count(pair[0]), count(pair[1]));
    CHECK_INT(count(pair[2]), count(pair[3]));
    CHECK_INT(count(pair[4]), count(pair[5]));
    CHECK_INT(count(pair[8]), 1);
    CHECK_INT(count(pair[9]), 1);
    file("interleaved1f1b_p4_v2_m8_comms", 0);
    svg(NULL);
    CHECK_INT(count("class=\"F1\""), 4 * 8);
    CHECK_INT(count("<line"), 2 * 7 * 8);
    CHECK_INT(count("<line class=\"f y\""), 8); /* from the last rank round to the first */
    CHECK(strstr(picture, "paler") != NULL);
    file("pt_dualpipev_p4_m10", 0);
    svg(NULL);
    CHECK_INT(count("height=\"15\""), 2 * count("OVERLAP_F_B on rank"));
    timed("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n", 0);
    svg(NULL);
    CHECK_INT(count("class=\"U\""), 2);
    timed("0SEND_F0\n1F0\n", 0); /* a message that no rank receives: no arrow */
    svg(NULL);
    CHECK_INT(count("<line"), 0);
    read_trace(2, 0);
    for (k = 0; k < 600; k++) { /* so many that only one digit fits in a backward */
        n += snprintf(csv + n, sizeof csv - (size_t)n, "%s0%c%d", k ? "," : "", k < 300 ? 'F' : 'B',
                      k % 300);
    }
    timed(csv, 0);
    svg(NULL);
    CHECK_INT(count("<g><title>"), 600);
    CHECK_INT(count("<text class=\"n\"") + count("<text class=\"q\""), 10);
}

/* Checks what a viewer needs of a trace: it is JSON, slices of a thread nest, each arrow has two
 * ends. */
static void read_trace(int64_t slices, int64_t arrows)
{
    static int64_t stack[8][8][64];
    static char open_id[1 << 20];
    dpar_schedule_draw_desc g = gantt(1, "a \"title\" \\ with marks");
    dpar_text t;
    dpari_json j;
    dpari_json_item item;
    int64_t ts = 0, dur = 0, id = 0, pid = 0, tid = 0, x = 0, s = 0, f = 0, depth[8][8],
            matched = 0;
    char phase = 0;
    memset(depth, 0, sizeof depth);
    memset(open_id, 0, sizeof open_id);
    dpar_text_init(&t, picture, sizeof picture);
    CHECK_INT(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TRACE, NULL), DPAR_OK);
    CHECK(t.used < sizeof picture);
    dpari_json_init(&j, picture, t.used);
    do {
        CHECK_INT(dpari_json_next(&j, &item, NULL), DPAR_OK);
        if (item.kind == DPARI_JSON_STRING && item.key_length == 2 && !memcmp(item.key, "ph", 2)) {
            phase = item.string[0];
        } else if (item.kind == DPARI_JSON_NUMBER && item.depth == 3) {
            int64_t v = (int64_t)item.number;
            *(!memcmp(item.key, "ts\"", 3)    ? &ts
              : !memcmp(item.key, "dur\"", 4) ? &dur
              : !memcmp(item.key, "id\"", 3)  ? &id
              : !memcmp(item.key, "pid\"", 4) ? &pid
                                              : &tid) = v;
        } else if (item.kind == DPARI_JSON_OBJECT_END && item.depth == 2) {
            if (phase == 'X') {
                int64_t *top = stack[pid][tid], n = depth[pid][tid];
                while (n > 0 && top[n - 1] <= ts && !(dur == 0 && top[n - 1] == ts)) {
                    n--;
                }
                CHECK(n == 0 || ts + dur <= top[n - 1]);
                top[n++] = ts + dur;
                depth[pid][tid] = n < 60 ? n : 0;
                x++;
            } else if (phase == 's' || phase == 'f') {
                CHECK(id >= 0 && id < (int64_t)sizeof open_id);
                matched += open_id[id] == (phase == 's' ? 2 : 1);
                open_id[id] = (char)(open_id[id] | (phase == 's' ? 1 : 2));
                s += phase == 's';
                f += phase == 'f';
            }
            phase = 0;
        }
    } while (item.kind != DPARI_JSON_END);
    CHECK_INT(x, slices);
    CHECK_INT(s, arrows);
    CHECK_INT(f, arrows);
    CHECK_INT(matched, arrows);
}

static void test_trace(void)
{
    int64_t k, pairs = 0;
    file("1f1b_p4_m8_comms", 0);
    read_trace(64 + 4 * 24, 48); /* 2 x 3 edges x 8 messages, a SEND and a RECV each */
    CHECK_INT(count("\"cat\":\"compute\""), 64);
    CHECK_INT(count("\"cat\":\"communication\",\"args\""), 96);
    CHECK_INT(count("\"process_name\""), 4);
    CHECK(strstr(picture, "\"ts\":25,\"dur\":2,\"name\":\"3B7\"") != NULL);
    file("interleaved1f1b_p4_v2_m8_comms", 0);
    read_trace(128 + 4 * 56, 2 * 56);
    file("pt_dualpipev_p4_m10", 0);
    for (k = 0; k < plan.begin[4]; k++) {
        pairs += plan.action[k].joined;
    }
    CHECK(pairs > 0);
    read_trace(plan.begin[4] + pairs, 0); /* a pair has three slices */
    CHECK_INT(count("OVERLAP_F_B"), pairs);
    /* the other ends: on another rank than the last, behind the last one found, before it */
    timed("2SEND_F0,0SEND_F0\n1RECV_F0\n4F0\n5F0\n3RECV_F0\n", 0);
    read_trace(6, 2);
    timed("0SEND_F0,0SEND_F1\n1RECV_F1,1RECV_F0\n", 0);
    read_trace(4, 2);
    timed("0UNSHARD,0F0,0I0,0W0,0REDUCE_GRAD,0RESHARD\n", 0);
    read_trace(6, 0);
    CHECK_INT(count("\"cat\":\"compute\""), 3); /* I and W are not messages */
}

/* ---- one small picture in full --------------------------------------------------------------- */

/* Makes every kind of element once, at times chosen by hand: 20 ticks, of which two are a unit. */
static void small(void)
{
    static const int64_t from[] = {0, 1, 3, 4, 4, 10, 13, 14, 18, 0, 5, 7, 12};
    static const int64_t to[] = {1, 3, 5, 10, 10, 13, 14, 18, 20, 5, 7, 8, 13};
    timed("0UNSHARD,0F10,0SEND_F10,(2F0;0B11)OVERLAP_F_B,0RECV_B10,0W3,0REDUCE_GRAD,2RECOMPUTE4\n"
          "1RECV_F10,1F10,3I2,1SEND_B10\n",
          0);
    CHECK_INT(plan.begin[2], 13);
    memcpy(start, from, sizeof from);
    memcpy(end, to, sizeof to);
}

static void test_small(void)
{
    dpar_schedule_draw_desc g;
    dpar_text t;
    small();
    CHECK_TEXT(text(2, "small", 100), SMALL_TEXT);
    svg("small");
    CHECK(strstr(picture, "</defs>") != NULL);
    CHECK_TEXT(strstr(picture, "</defs>"), SMALL_SVG);
    CHECK(strncmp(picture, SMALL_HEAD, strlen(SMALL_HEAD)) == 0);
    g = gantt(2, NULL);
    dpar_text_init(&t, picture, sizeof picture);
    CHECK_INT(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TRACE, NULL), DPAR_OK);
    CHECK_TEXT(picture, SMALL_TRACE);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refused(int64_t unit, int32_t width, const char *sentence)
{
    dpar_schedule_draw_desc g = gantt(unit, NULL);
    dpar_text t;
    dpar_why why;
    g.width = width;
    dpar_text_init(&t, picture, sizeof picture);
    why.text[0] = 0;
    CHECK_INT(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TEXT, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(t.used, 0);
    if (width == 80) {
        CHECK_INT(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_SVG, &why), DPAR_E_ARG);
        CHECK_TEXT(why.text, sentence);
        CHECK_INT(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TRACE, NULL), DPAR_E_ARG);
        CHECK_INT(t.used, 0);
    }
}

static void test_refusals(void)
{
    timed("0F0,0B0\n1F0,1B0\n", 0);
    refused(0, 80, "2 ranks and unit=0; 1 to 65535 and 1 to 1e12 are allowed");
    refused(1, 31, "width=31; 32 to 4096 characters are allowed");
    refused(1, 4097, "width=4097; 32 to 4096 characters are allowed");
    end[3] = start[3] - 1;
    refused(1, 80, "action 1 of rank 1 runs from 2 to 1; 0 <= start <= end must hold");
    plan.action[3].kind = DPAR_ACTION_RECV_F; /* a message may have arrived before */
    CHECK(strstr(text(1, NULL, 80), "makespan 6;") != NULL);
    plan.action[3].kind = DPAR_ACTION_BACKWARD;
    start[3] = -5;
    refused(1, 80, "action 1 of rank 1 runs from -5 to 1; 0 <= start <= end must hold");
    plan.action[2].kind = DPAR_ACTION_COUNT;
    refused(1, 80,
            "action 0 of rank 1 has kind 16 and stage 1; kind, stage or peer is out of range");
    plan.action[2].kind = DPAR_ACTION_FORWARD;
    plan.action[2].peer = 2;
    refused(1, 80,
            "action 0 of rank 1 has kind 1 and stage 1; kind, stage or peer is out of range");
    plan.action[2].stage = 2;
    plan.action[2].peer = 1;
    refused(1, 80,
            "action 0 of rank 1 has kind 1 and stage 2; kind, stage or peer is out of range");
    plan.action[2].stage = 1;
    plan.action[2].kind = 99;
    refused(1, 80,
            "action 0 of rank 1 has kind 99 and stage 1; kind, stage or peer is out of range");
    plan.action[1].stage = 7;
    refused(1, 80,
            "action 1 of rank 0 has kind 2 and stage 7; kind, stage or peer is out of range");
    plan.action[0].joined = 1;
    plan.action[1].kind = DPAR_ACTION_WEIGHT;
    refused(1, 80, "action 0 of rank 0 is joined, but it is not an F that a B or I follows");
    plan.action[1].kind = DPAR_ACTION_BACKWARD;
    plan.action[1].stage = 0;
    plan.action[0].kind = DPAR_ACTION_WEIGHT;
    refused(1, 80, "action 0 of rank 0 is joined, but it is not an F that a B or I follows");
    plan.action[0].kind = DPAR_ACTION_FORWARD;
    plan.action[1].joined = 1;
    refused(1, 80, "action 0 of rank 0 is joined, but it is not an F that a B or I follows");
    plan.action[0].joined = 0;
    refused(1, 80, "action 1 of rank 0 is joined, but it is not an F that a B or I follows");
    plan.action[1].kind = DPAR_ACTION_FORWARD; /* the last of its rank */
    refused(1, 80, "action 1 of rank 0 is joined, but it is not an F that a B or I follows");
    plan.begin[1] = -1;
    refused(1, 80, "the list of rank 0 begins at action 0 and ends at -1");
    plan.ranks = 0;
    refused(1, 80, "0 ranks and unit=1; 1 to 65535 and 1 to 1e12 are allowed");
}

/* Checks times up to INT64_MAX in any order: the pictures make no sense but are pictures. */
static void test_extremes(void)
{
    uint64_t seed = 1;
    int i, k;
    for (i = 0; i < 200; i++) {
        timed("0F0,(0F1;0B0)OVERLAP_F_B,0SEND_F1,0REDUCE_GRAD,0B1\n1RECV_F1,1F1,1B1\n", 0);
        for (k = 0; k < plan.begin[2]; k++) {
            seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            start[k] = (int64_t)(seed >> (1 + seed % 60));
            end[k] = i % 2 ? INT64_MAX
                           : start[k] + (int64_t)((seed >> 20) % 3) * ((INT64_MAX - start[k]) / 3);
        }
        (void)text(1 + (int64_t)(seed % 1000), NULL, 32 + i);
        svg(NULL);
        CHECK(strstr(picture, "</svg>") != NULL && strchr(strstr(picture, "<text"), '-') != NULL);
        {
            dpar_schedule_draw_desc g = gantt(INT64_C(1000000000000), NULL);
            dpar_text t;
            dpar_text_init(&t, picture, sizeof picture);
            CHECK_INT(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TRACE, NULL), DPAR_OK);
        }
    }
}

/* Checks two messages in flight at once: each at its real time, on its own thread, arrows
 * forward. */
static void test_trace_lanes(void)
{
    static const char csv[] = "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1RECV_F1,1F0,1F1\n";
    static const int64_t start[] = {0, 1, 1, 2, 0, 0, 10, 11},
                         end[] = {1, 10, 2, 11, 10, 11, 11, 12};
    static int64_t mem[64];
    static char text[1 << 14];
    dpar_schedule s;
    dpar_schedule_draw_desc g;
    dpar_text t;
    dpar_why why;
    CHECK_INT(read_csv(&s, csv, sizeof csv - 1, 0, mem, sizeof mem, &why), DPAR_OK);
    g.schedule = &s;
    g.start = start;
    g.end = end;
    g.unit = 1;
    g.title = NULL;
    g.width = 0;
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TRACE, &why), DPAR_OK);
    CHECK(strstr(text, "\"tid\":1,\"ts\":1,\"dur\":9,\"name\":\"0SEND_F0\"") != NULL);
    CHECK(
        strstr(text, "\"tid\":7,\"name\":\"thread_name\",\"args\":{\"name\":\"send forward2\"}") !=
        NULL);
    CHECK(strstr(text, "\"tid\":7,\"ts\":2,\"dur\":9,\"name\":\"0SEND_F1\"") != NULL);
    CHECK(strstr(text, "\"pid\":1,\"tid\":8,\"ts\":2,\"dur\":9,\"name\":\"1RECV_F1\"") != NULL);
    CHECK(strstr(text, "\"ph\":\"f\",\"pid\":1,\"tid\":8,\"ts\":2,") != NULL);
}

/* Checks nine messages at once on eight threads: the rest of the last one is drawn on the thread
 * that is free first. */
static void test_trace_full(void)
{
    static const char full[] = "0SEND_F0,0SEND_F1,0SEND_F2,0SEND_F3,0SEND_F4,0SEND_F5,0SEND_F6,"
                               "0SEND_F7,0SEND_F8\n1F0\n";
    dpar_schedule_draw_desc g;
    dpar_text t;
    int k;
    timed(full, 0);
    for (k = 0; k < 9; k++) {
        start[k] = 1;
        end[k] = k < 8 ? 20 - k : 30;
    }
    g = gantt(1, NULL);
    dpar_text_init(&t, picture, sizeof picture);
    CHECK_INT(dpar_schedule_draw(&t, &g, DPAR_SCHEDULE_DRAW_TRACE, NULL), DPAR_OK);
    CHECK(strstr(picture, "\"tid\":37,\"ts\":1,\"dur\":13,\"name\":\"0SEND_F6\"") != NULL);
    CHECK(strstr(picture, "\"tid\":43,\"ts\":1,\"dur\":12,\"name\":\"0SEND_F7\"") != NULL);
    CHECK(strstr(picture, "\"tid\":43,\"ts\":13,\"dur\":17,\"name\":\"0SEND_F8\"") != NULL);
}

int main(void)
{
    test_text();
    test_many();
    test_widths();
    test_svg();
    test_trace();
    test_small();
    test_refusals();
    test_extremes();
    test_trace_lanes();
    test_trace_full();
    return CHECK_DONE();
}
