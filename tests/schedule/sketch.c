/* SPDX-License-Identifier: MIT-0 */
/* Tests sketch: schedules by name are those of an order, and the picture is that of a simulation
 * with F = I = W = 1, byte for byte; memory of exactly the bytes that E_ROOM reports is enough, one
 * byte less is not. Run with: tests/run test schedule. */
#include "dpar_schedule.h"

#include "check.h"
#include "schedule_calls.h"

#include <stdlib.h>

static int64_t memory[1 << 15], by_order[1 << 15], work[1 << 15];
static char text[1 << 18], expected[1 << 18];
static dpar_why why;

/* Returns the number before a word of the message. */
static int64_t said(const char *word)
{
    const char *at = strstr(why.text, word);
    if (at == NULL) {
        return -1;
    }
    while (at > why.text && at[-1] != ' ') {
        at--;
    }
    at--;
    while (at > why.text && at[-1] != ' ') {
        at--;
    }
    return (int64_t)atoll(at);
}

/* Draws with the full API what the one call must draw. */
static void draw(const dpar_schedule *s, int32_t format, dpar_text *t)
{
    int64_t *start = calloc((size_t)s->begin[s->ranks], 8),
            *end = calloc((size_t)s->begin[s->ranks], 8);
    dpar_schedule_times times;
    dpar_schedule_simulate_desc how;
    dpar_timing timing;
    dpar_schedule_draw_desc g;
    memset(&times, 0, sizeof times);
    memset(&how, 0, sizeof how);
    memset(&g, 0, sizeof g);
    times.forward.all = times.input.all = times.weight.all = 1;
    how.times = &times;
    how.start = start;
    how.end = end;
    CHECK_INT(dpar_schedule_simulate(s, &how, &timing, work, sizeof work, &why), DPAR_OK);
    g.schedule = s;
    g.start = start;
    g.end = end;
    g.unit = 1;
    g.width = 100;
    CHECK_INT(dpar_schedule_draw(t, &g, format, &why), DPAR_OK);
    free(start);
    free(end);
}

static void test_make(int32_t rule)
{
    const char *name = dpar_schedule_name(rule);
    dpar_schedule_desc o;
    dpar_schedule s, t;
    int64_t need, k;
    memset(&o, 0, sizeof o);
    o.rule = rule;
    o.ranks = 4;
    o.micro_batches = 8;
    need = dpari_schedule_generate_bytes(&o, &why);
    CHECK_INT(dpar_schedule_generate(&t, &o, by_order, sizeof by_order, &why), DPAR_OK);
    memset(&s, 0x55, sizeof s);
    CHECK_INT(generate_named(memory, need - 1, name, 4, 8, &s, &why), DPAR_E_ROOM);
    CHECK_INT(said("bytes"), need);
    CHECK_INT(s.ranks, 0x55555555);
    CHECK_INT(generate_named(NULL, need, name, 4, 8, &s, &why), DPAR_E_ROOM);
    CHECK_INT(generate_named(memory, said("bytes"), name, 4, 8, &s, &why), DPAR_OK);
    CHECK_INT(s.ranks, t.ranks);
    CHECK_INT(s.stages, t.stages);
    CHECK_INT(s.micro_batches, t.micro_batches);
    CHECK_INT(s.chain, t.chain);
    CHECK_INT(s.slices, t.slices);
    CHECK(memcmp(s.begin, t.begin, 8 * (size_t)(t.ranks + 1)) == 0);
    CHECK(memcmp(s.rank_of, t.rank_of, 2 * (size_t)t.stages) == 0);
    for (k = 0; k < t.begin[t.ranks]; k++) {
        CHECK(memcmp(&s.action[k], &t.action[k], sizeof s.action[k]) == 0);
    }
}

static void test_sketch(int32_t rule)
{
    dpar_schedule s;
    dpar_text t, e;
    int64_t need;
    int32_t format;
    CHECK_INT(generate_named(memory, sizeof memory, dpar_schedule_name(rule), 4, 8, &s, &why),
              DPAR_OK);
    for (format = DPAR_SCHEDULE_DRAW_TEXT; format <= DPAR_SCHEDULE_DRAW_TRACE; format++) {
        dpar_text_init(&e, expected, sizeof expected);
        draw(&s, format, &e);
        dpar_text_init(&t, text, sizeof text);
        CHECK_INT(dpar_schedule_sketch(&s, format, work, 0, &t, &why), DPAR_E_ROOM);
        need = said("bytes");
        CHECK_INT(dpar_schedule_sketch(&s, format, work, need - 1, &t, &why), DPAR_E_ROOM);
        CHECK_INT(dpar_schedule_sketch(&s, format, NULL, need, &t, &why), DPAR_E_ROOM);
        CHECK_INT(dpar_schedule_sketch(&s, format, (char *)work + 4, need, &t, &why), DPAR_E_ROOM);
        CHECK_TEXT(text, "");
        CHECK_INT(dpar_schedule_sketch(&s, format, work, need, &t, &why), DPAR_OK);
        CHECK_INT(t.used, e.used);
        CHECK(strcmp(text, expected) == 0 && t.used < sizeof text);
    }
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpar_schedule_sketch(&s, 3, work, sizeof work, &t, &why), DPAR_E_ARG);
    CHECK_TEXT(text, "");
}

static void test_refused(void)
{
    dpar_schedule s;
    dpar_text t;
    CHECK_INT(generate_named(memory, sizeof memory, "zbw", 4, 8, &s, &why), DPAR_E_UNKNOWN);
    CHECK(strstr(why.text, "zbw") != NULL && strstr(why.text, "zbv") != NULL);
    CHECK_INT(generate_named(memory, sizeof memory, "gpipe", 0, 8, &s, &why), DPAR_E_ARG);
    CHECK_INT(generate_named(memory, sizeof memory, "dualpipe", 3, 8, &s, NULL), DPAR_E_DIVIDE);
    /* ranks that wait for each other: 1F1B's last rank begins with a backward */
    CHECK_INT(generate_named(memory, sizeof memory, "1f1b", 2, 2, &s, &why), DPAR_OK);
    s.action[s.begin[1]].kind = DPAR_ACTION_BACKWARD;
    s.action[s.begin[1] + 1].kind = DPAR_ACTION_FORWARD;
    dpar_text_init(&t, text, sizeof text);
    CHECK(dpar_schedule_sketch(&s, DPAR_SCHEDULE_DRAW_TEXT, work, sizeof work, &t, &why) < 0);
    CHECK(why.text[0] != 0);
    CHECK_TEXT(text, "");
    s.ranks = -1;
    CHECK_INT(dpar_schedule_sketch(&s, DPAR_SCHEDULE_DRAW_TEXT, work, sizeof work, &t, &why),
              DPAR_E_ARG);
}

int main(void)
{
    int32_t rule;
    for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
        test_make(rule);
        test_sketch(rule);
    }
    test_refused();
    return CHECK_DONE();
}
