/* SPDX-License-Identifier: MIT-0 */
/* Tests the text form of schedules against PyTorch's grammar
 * (torch/distributed/pipelining/schedules.py, _Action.from_str), read strictly; every list of
 * tests/data/pipeline (each file names its source) is read and written again unchanged. Run with:
 * tests/run test schedule. */
#include "dpar_schedule.h"

#include "check.h"
#include "data_lines.h"
#include "schedule_calls.h"

#include <stdlib.h>

static char text[1 << 16], again[1 << 16];
static int64_t memory[1 << 14];

static void test_files(void)
{
    static const struct {
        const char *name;
        int32_t ranks, stages, micros, chain;
        int64_t actions; /* 2 or 3 per stage and micro-batch, 4 per message; idle cells */
    } file[] = {{"gpipe_fifo_p4_m4", 4, 4, 4, 0, 32},
                {"1f1b_p4_m8_comms", 4, 4, 8, 0, 64 + 4 * 3 * 8},
                {"interleaved1f1b_p4_v2_m8", 4, 8, 8, 0, 172},
                {"zbv_p4_m8", 4, 8, 8, 0, 192},
                {"dualpipe_p4_m8", 4, 8, 8, 4, -1},
                {"chimera_p4_m4", 4, 8, 4, 4, 36}, /* 9 slots */
                {"unbalanced_p2_5stages_m1", 2, 5, 1, 0, 20},
                {"pt_dualpipev_p4_m10", 4, 8, 10, 0, -1},
                {"seq1f1b_p4_m4_s2", 4, 4, 8, 0, 64}};
    size_t k;
    for (k = 0; k < sizeof file / sizeof file[0]; k++) {
        size_t n = data_lines(file[k].name, text, sizeof text);
        dpar_schedule s;
        dpar_text t;
        dpar_why why;
        CHECK(read_csv_bytes(text, n, &why) <= (int64_t)sizeof memory);
        CHECK_INT(read_csv(&s, text, n, file[k].chain, memory, sizeof memory, &why), DPAR_OK);
        CHECK_INT(s.ranks, file[k].ranks);
        CHECK_INT(s.stages, file[k].stages);
        CHECK_INT(s.micro_batches, file[k].micros);
        CHECK_INT(s.chain, file[k].chain ? file[k].chain : file[k].stages);
        if (file[k].actions >= 0) {
            CHECK_INT(s.begin[s.ranks], file[k].actions);
        }
        dpar_text_init(&t, again, sizeof again);
        dpar_schedule_write(&s, "\n", &t);
        CHECK_TEXT(again, text);
    }
}

/* Checks that a text is refused, and the whole message. */
static void refused(const char *csv, dpar_status st, const char *sentence)
{
    dpar_schedule s;
    dpar_why why;
    size_t n = strlen(csv);
    char *exact = (char *)malloc(n + 1); /* exact size: the sanitizer sees a read behind it */
    if (exact == NULL) {
        return;
    }
    memcpy(exact, csv, n);
    memset(&s, 77, sizeof s);
    CHECK_INT(read_csv(&s, exact, n, 0, memory, sizeof memory, &why), st);
    CHECK_TEXT(why.text, sentence);
    CHECK_INT(s.ranks, 77 * 0x1010101); /* nothing was written */
    CHECK_INT(read_csv(&s, exact, n, 0, memory, sizeof memory, NULL), st);
    free(exact);
}

static void test_refusals(void)
{
    dpar_schedule s;
    dpar_why why;
    refused("0F0,0B0\n0F0xyz\n", DPAR_E_PARSE,
            "line 2, column 4: expected a comma or the end of the line, not 'xyz'");
    refused("0F0,0RESHARD5", DPAR_E_PARSE,
            "line 1, column 13: expected a comma or the end of the line, not '5'");
    refused("F0", DPAR_E_PARSE, "line 1, column 1: expected a stage's number, not 'F0'");
    refused("# one\n0F0,0B", DPAR_E_PARSE, "line 2, column 7: expected a micro-batch's number");
    refused("0F0, 0X1 ", DPAR_E_PARSE,
            "line 1, column 7: expected F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, "
            "RESHARD, REDUCE_GRAD, WAIT_REDUCE_GRAD, RECOMPUTE, OFFLOAD or RELOAD, not 'X1 '");
    refused("0F65535", DPAR_E_PARSE,
            "line 1, column 3: expected a number of 0 to 65534, not '65535'");
    refused("99999999999999999999F0", DPAR_E_PARSE,
            "line 1, column 1: expected a number of 0 to 65534, not '99999999999999999999F0'");
    refused("(0F1;0B0)OVERLAP", DPAR_E_PARSE,
            "line 1, column 9: expected )OVERLAP_F_B, not ')OVERLAP'");
    refused("(0B1;0F0)OVERLAP_F_B", DPAR_E_PARSE,
            "line 1, column 2: expected an F, which a B or I overlaps, not "
            "'0B1;0F0)OVERLAP_F_B'");
    refused("(0F1;0W0)OVERLAP_F_B", DPAR_E_PARSE,
            "line 1, column 6: expected a B or I, which overlaps the F, not '0W0)OVERLAP_F_B'");
    refused("(0F1,0B0)OVERLAP_F_B", DPAR_E_PARSE, "line 1, column 5: expected ;");
    refused("", DPAR_E_PARSE,
            "the text has 0 ranks and 0 stages; a schedule has 1 or more of each");
    refused(",,\n\n", DPAR_E_PARSE,
            "the text has 2 ranks and 0 stages; a schedule has 1 or more of each");
    refused("0F0\r0B0\n", DPAR_E_PARSE,
            "line 1, column 4: expected a comma or the end of the line");
    refused("0F0\"", DPAR_E_PARSE,
            "line 1, column 4: expected a comma or the end of the line, not '\"'");
    refused("\"0F0\"", DPAR_E_PARSE, "line 1, column 1: expected \"\", not '\"0F0\"'");
    refused("0F0\n0F1\n", DPAR_E_ARG, "stage 0 is on rank 0 and on rank 1");
    refused("0F0\n2F0\n", DPAR_E_ARG, "stage 1 has no action, but stage 2 is on rank 1");
    refused("0F0,0RECV_F0\n1F0\n", DPAR_E_ARG,
            "0RECV_F0 has no partner, because stage 0 ends its chain");
    refused("0F0,0SEND_F0,1F0\n", DPAR_E_ARG,
            "0SEND_F0 is not needed, because stage 1 is on the same rank");
    CHECK_INT(read_csv(&s, "0F0\n1F0\n2F0\n", 12, 2, memory, sizeof memory, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "chains of 2 stages do not divide 3 stages");
    CHECK_INT(read_csv_bytes("0F0\n", 4, NULL), 2 * 8 + 8 + 8);
    CHECK_INT(read_csv(&s, "0F0\n", 4, 0, memory, 31, &why), DPAR_E_ROOM);
    CHECK_TEXT(why.text, "a schedule of 1 actions on 1 ranks needs 32 bytes, got 31");
    CHECK_INT(read_csv_bytes("0F0x", 4, &why), -1);
}

/* Checks blanks, CRLF, comments, empty lines and cells, and no newline at the end. */
static void test_forms(void)
{
    static const char csv[] = "# ranks: 3\r\n 0F0 ,,\t0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,"
                              "0WAIT_REDUCE_GRAD\r\n\r\n"
                              "\"\"\n1UNSHARD,1RECV_F0,1F0,1OFFLOAD0,1RECOMPUTE0,1RELOAD0,1I0,"
                              "1SEND_B0,1W0,1RESHARD";
    static const char expected[] = "0F0,,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,"
                                   "0WAIT_REDUCE_GRAD\r\n\r\n\"\"\r\n"
                                   "1UNSHARD,1RECV_F0,1F0,1OFFLOAD0,1RECOMPUTE0,1RELOAD0,1I0,"
                                   "1SEND_B0,1W0,1RESHARD\r\n";
    dpar_schedule s;
    dpar_text t;
    dpar_why why;
    CHECK_INT(read_csv(&s, csv, sizeof csv - 1, 0, memory, sizeof memory, &why), DPAR_OK);
    CHECK_INT(s.ranks, 4);
    CHECK_INT(s.begin[1], 7);
    CHECK_INT(s.begin[2], 7);
    CHECK_INT(s.begin[3], 8);
    CHECK_INT(s.action[2].peer, 3);
    CHECK_INT(s.action[9].peer, 0);
    CHECK_INT(s.rank_of[1], 3);
    dpar_text_init(&t, again, sizeof again);
    dpar_schedule_write(&s, "\r\n", &t);
    CHECK_TEXT(again, expected);
    dpar_text_init(&t, again, sizeof again);
    dpar_action_write(&s.action[1], &t);
    CHECK_TEXT(again, "");
    CHECK_TEXT(dpari_action_name(DPAR_ACTION_REDUCE_GRAD), "REDUCE_GRAD");
    CHECK_TEXT(dpari_action_name(DPAR_ACTION_COUNT), "");
    CHECK_TEXT(dpari_action_name(-1), "");
    CHECK(dpari_action_has_micro(DPAR_ACTION_RELOAD) &&
          !dpari_action_has_micro(DPAR_ACTION_RESHARD) &&
          !dpari_action_has_micro(DPAR_ACTION_WAIT_REDUCE));
}

static void test_maps(void)
{
    static const int32_t loop[] = {0, 1, 2, 3, 0, 1, 2, 3}, v[] = {0, 1, 2, 3, 3, 2, 1, 0};
    dpar_schedule s;
    int32_t i;
    for (i = 0; i < 8; i++) {
        CHECK_INT(dpari_stage_rank(DPAR_STAGE_MAP_LOOP, 4, i), loop[i]);
        CHECK_INT(dpari_stage_rank(DPAR_STAGE_MAP_V, 4, i), v[i]);
        CHECK_INT(dpari_stage_rank(DPAR_STAGE_MAP_BIDIRECTIONAL, 4, i), v[i]);
    }
    CHECK_INT(dpari_stage_rank(DPAR_STAGE_MAP_V, 4, 8), 0); /* a wave continues */
    CHECK_INT(dpari_stage_rank(DPAR_STAGE_MAP_BIDIRECTIONAL, 4, 8), -1);
    CHECK_INT(dpari_stage_rank(DPAR_STAGE_MAP_LOOP, 0, 0), -1);
    CHECK_INT(dpari_stage_rank(DPAR_STAGE_MAP_LOOP, 4, -1), -1);
    CHECK_INT(dpari_stage_rank(3, 4, 0), -1);
    CHECK_INT(dpari_stage_rank(-1, 4, 0), -1);
    CHECK_INT(dpari_schedule_bytes(2, 3, 5), 3 * 8 + 5 * 8 + (3 * 2 + 2)); /* multiples of 8 */
    CHECK_INT(dpari_schedule_bytes(0, 3, 5), -1);
    CHECK_INT(dpari_schedule_bytes(2, 65536, 5), -1);
    CHECK_INT(dpari_schedule_bytes(2, 3, INT64_MAX), -1);
    CHECK_INT(schedule_init(&s, 0, 1, 1, memory, sizeof memory, NULL), DPAR_E_ARG);
    CHECK_INT(schedule_init(&s, 4, 8, 0, memory, sizeof memory, NULL), DPAR_OK);
    s.chain = 4;
    CHECK_INT(dpari_schedule_before(&s, 0), -1);
    CHECK_INT(dpari_schedule_before(&s, 4), -1);
    CHECK_INT(dpari_schedule_before(&s, 5), 4);
    CHECK_INT(dpari_schedule_behind(&s, 3), -1);
    CHECK_INT(dpar_schedule_partner(&s, DPAR_ACTION_SEND_F, 4), 5);
    CHECK_INT(dpar_schedule_partner(&s, DPAR_ACTION_RECV_B, 4), 5);
    CHECK_INT(dpar_schedule_partner(&s, DPAR_ACTION_FORWARD, 3), -1);
    CHECK_INT(dpar_schedule_partner(&s, DPAR_ACTION_RECV_F, 5), 4);
    CHECK_INT(dpar_schedule_partner(&s, DPAR_ACTION_SEND_B, 5), 4);
    CHECK_INT(dpar_schedule_partner(&s, DPAR_ACTION_INPUT, 4), -1);
    CHECK_INT(dpar_schedule_partner(&s, DPAR_ACTION_BACKWARD, 1), 0);
    CHECK_INT(dpar_schedule_partner(&s, DPAR_ACTION_WEIGHT, 1), -1);
    CHECK_INT(dpari_schedule_behind(&s, 6), 7);
    CHECK_INT(dpari_schedule_behind(&s, 7), -1);
}

int main(void)
{
    test_files();
    test_refusals();
    test_forms();
    test_maps();
    return CHECK_DONE();
}
