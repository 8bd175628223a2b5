/* SPDX-License-Identifier: MIT-0 */
/* Tests what the doctor says about links between ranks (commands/doctor_links.h), of jobs that are
 * made up here. Run with: tests/run test debug. */
#include "dpar_comm.h"

#include "../../commands/doctor_machine.h"

#include "../../commands/doctor_links.h"

#include "check.h"

enum { MOST = 1000 };
static links_place place[MOST];
static links_link link_of[2 * MOST];
static const links_link *sorted[2 * MOST];
static int numbers[4 * MOST];
static char text[16384], faults[16384];

/* Makes nodes "n1", "n2", ... without faults, of `each` ranks, in order or round robin: 64 cores,
 * one socket. Messages in a node take 1 us and have 8 GB/s, between nodes 10 us and 2.5 GB/s. */
static links_job healthy_job(int n, int each, int turns)
{
    links_job job;
    const int nodes = (n + each - 1) / each;
    int r, round;
    memset(&job, 0, sizeof job);
    memset(place, 0, sizeof place);
    memset(link_of, 0, sizeof link_of);
    for (r = 0; r < n; r++) {
        const int node = turns ? r % nodes : r / each;
        snprintf(place[r].host, sizeof place[r].host, "n%d", node + 1);
        snprintf(place[r].boot, sizeof place[r].boot, "%d", node + 1);
        place[r].share = turns ? node : node * each;
        place[r].socket = -1;
        place[r].sockets = 1;
        place[r].cores = 64;
        place[r].allowed = 1;
        place[r].gpus = 8;
        place[r].memory = 64LL << 30;
        place[r].shm = 32LL << 30;
        place[r].port = 25000;
        strcpy(place[r].ports, "eth0 25 Gb/s");
        link_of[2 * r].peer = link_of[2 * r + 1].peer = -1;
    }
    job.size = n;
    job.place = place;
    job.link = link_of;
    links_find_nodes(&job, numbers);
    for (round = 0; round < links_rounds(&job); round++) {
        for (r = 0; r < n; r++) {
            int leads = 0;
            const int peer = links_peer(&job, round, r, &leads), far = round >= job.most - 1;
            if (peer >= 0 && leads) {
                links_link *link = &link_of[2 * r + far];
                CHECK_INT(link->peer, -1);
                link->rank = r;
                link->peer = peer;
                link->latency_s = far ? 10e-6 : 1e-6;
                link->bytes_s = far ? 2.5e9 : 8e9;
            }
        }
    }
    return job;
}

/* Checks the number of complaints, each a line with a remedy, and that one of them begins like
 * this. */
static void compare(const links_job *job, int wrong, const char *begins, int line)
{
    doctor_lines facts, out;
    const char *at;
    int found = begins[0] == 0;
    doctor_lines_init(&facts, text, sizeof text);
    doctor_lines_init(&out, faults, sizeof faults);
    links_report(job, sorted, &facts, &out);
    CHECK_INT(out.wrong, wrong);
    for (at = faults; *at != 0; at = strchr(at, '\n') + 1) {
        const char *remedy = strstr(at, " -> ");
        found = found || strncmp(at, begins, strlen(begins)) == 0;
        CHECK(strncmp(at, "WRONG: ", 7) == 0);
        CHECK(remedy != NULL && remedy < strchr(at, '\n'));
    }
    if (!found) {
        printf("line %d: no \"%s\" in: %s\n", line, begins, faults);
        CHECK(0);
    }
}
#define COMPARE(job, wrong, begins) compare(&(job), wrong, begins, __LINE__)

/* Checks which ranks exchange messages: the same seen from both, one pair of a node at a time, each
 * rank of a node with its neighbours there once, each node with the next one once. */
static void test_rounds(void)
{
    static const int shape[][3] = {{1, 1, 0}, {2, 1, 0},  {2, 2, 0},  {3, 1, 0},
                                   {4, 2, 1}, {5, 5, 0},  {6, 2, 0},  {8, 3, 0},
                                   {9, 3, 1}, {12, 2, 0}, {35, 5, 1}, {14, 2, 0}};
    size_t k;
    for (k = 0; k < sizeof shape / sizeof shape[0]; k++) {
        const int n = shape[k][0], each = shape[k][1], nodes = (n + each - 1) / each;
        links_job job = healthy_job(n, each, shape[k][2]);
        int pairs = 0, round, r;
        CHECK_INT(job.nodes, nodes);
        for (round = 0; round < links_rounds(&job); round++) {
            int busy[MOST] = {0};
            for (r = 0; r < n; r++) {
                int leads = 0, follows = 0;
                const int peer = links_peer(&job, round, r, &leads);
                if (peer < 0) {
                    continue;
                }
                CHECK(peer != r && peer < n);
                CHECK_INT(links_peer(&job, round, peer, &follows), r);
                CHECK_INT(leads + follows, 1);
                CHECK((job.node[r] == job.node[peer]) == (round < job.most - 1));
                busy[job.node[r]]++;
                pairs += r < peer;
            }
            for (r = 0; r < nodes; r++) {
                CHECK(busy[r] <= 2);
                CHECK(round < job.most - 1 || busy[r] <= 1);
            }
        }
        CHECK_INT(pairs, n - nodes + (nodes > 2 ? nodes : nodes - 1));
    }
}

static void test_levels(void)
{
    links_job job = healthy_job(6, 3, 0);
    CHECK_INT(links_level(&job, 0, 2), LINKS_MEMORY);
    CHECK_INT(links_level(&job, 2, 3), LINKS_BETWEEN);
    place[0].socket = place[2].socket = 1;
    CHECK_INT(links_level(&job, 0, 2), LINKS_SOCKET);
    CHECK_INT(links_level(&job, 0, 1), LINKS_MEMORY);
    place[2].share = 2;
    CHECK_INT(links_level(&job, 0, 2), LINKS_UNSHARED);
    job = healthy_job(6, 3, 0);
    link_of[2 * 0].latency_s = 2e-6;
    link_of[2 * 4].latency_s = 0.5e-6; /* 0.5, 1, 1, 2: the upper of the two in the middle is 1 */
    link_of[2 * 3].bytes_s = 7e9;      /* 7, 8, 8, 8 */
    COMPARE(job, 0, "");
    CHECK_TEXT(strstr(text, "within"),
               "within     a node, by memory: 8 B in 1 us, 1 MiB at 8 GB/s, medians of 4 pairs; "
               "worst 2 us "
               "(ranks 0 and 1 on n1), 7 GB/s (ranks 3 and 4 on n2)\n"
               "between    nodes: 8 B in 10 us, 1 MiB at 2.5 GB/s (ranks 0 on n1 and 3 on n2)\n");
}

static void say_nodes(const links_job *job)
{
    doctor_lines out;
    doctor_lines_init(&out, text, sizeof text);
    links_say_nodes(job, &out);
}

static void test_nodes(void)
{
    links_job job = healthy_job(5, 3, 0);
    int r;
    place[4].allowed = 2;
    place[3].ports[0] = 0;
    say_nodes(&job);
    CHECK_TEXT(
        text,
        "n1         ranks 0 to 2 on 64 cores of 1 socket, each bound to 1 core, memory 64 GiB, "
        "/dev/shm 32.0 GiB, 8 GPUs; eth0 25 Gb/s\n"
        "n2         ranks 3, 4 on 64 cores of 1 socket, each bound to 1 to 2 cores, memory 64 GiB, "
        "/dev/shm 32.0 GiB, 8 GPUs; no port is up\n");
    job = healthy_job(4, 2, 1); /* distributed round robin, with one rank not bound */
    place[0].allowed = place[2].allowed = 64;
    say_nodes(&job);
    CHECK(strncmp(text, "n1         ranks 0, 2 on 64 cores of 1 socket, not bound, memory", 64) ==
          0);
    /* 125 nodes, of which one differs */
    job = healthy_job(1000, 8, 0);
    place[80].shm = 16LL << 30;
    say_nodes(&job);
    CHECK(strncmp(text, "n1         to n10: 10 nodes, on each 8 ranks on 64 cores", 56) == 0);
    CHECK(strstr(text, "\nn11        ranks 80 to 87 on 64 cores") != NULL);
    CHECK(strstr(text, "\nn12        to n125: 114 nodes, on each 8 ranks on 64 cores") != NULL);
    CHECK(strlen(text) < 600);
    for (r = 0; r < 1000; r += 16) {
        place[r].ports[0] = 0; /* every second node: a screenful, and how many more */
    }
    say_nodes(&job);
    CHECK(strstr(text, "\n... and 101 more nodes\n") != NULL);
}

static void test_speeds(void)
{
    links_job job = healthy_job(8, 4, 0);
    link_of[2 * 5].latency_s = 8e-6; /* exactly at the limit, with median 1 */
    link_of[2 * 5].bytes_s = 1.6e9;  /* and with median 8 */
    COMPARE(job, 0, "");
    link_of[2 * 5].latency_s = 8.1e-6;
    COMPARE(
        job, 1,
        "WRONG: ranks 5 and 6 on n2: 8.1 us and 1.6 GB/s, the median of 6 such pairs is 1 us and 8 "
        "GB/s -> look for other programs on their cores");
    link_of[2 * 5].latency_s = 1e-6;
    link_of[2 * 5].bytes_s = 1.59e9;
    COMPARE(job, 1, "WRONG: ranks 5 and 6 on n2: 1 us and 1.59 GB/s");
    place[4].cores = place[5].cores = place[6].cores = 3; /* waits for a core, which is reported */
    COMPARE(job, 0, "");
    job = healthy_job(4, 1, 0);
    link_of[2 * 2 + 1].bytes_s = 0.4e9;
    COMPARE(job, 1,
            "WRONG: ranks 2 on n3 and 3 on n4: 10 us and 0.4 GB/s, the median of 4 such pairs is "
            "10 us");
    job = healthy_job(2, 1, 0);
    link_of[2 * 0 + 1].bytes_s = 0.3125e9; /* 2.5 of 25 Gb/s */
    COMPARE(job, 0, "");
    link_of[2 * 0 + 1].bytes_s = 0.312e9;
    COMPARE(job, 1,
            "WRONG: between nodes 0.312 GB/s (2.5 Gb/s), where each has a port of 25 Gb/s -> ");
    place[1].port = 1000;
    COMPARE(job, 0, "");
    place[1].port = 0; /* the driver does not report it */
    COMPARE(job, 0, "");
}

/* Checks what ranks report about themselves: equal lines once, numbers separately, with the first
 * rank that reports them, and how many others do. */
static void test_own(void)
{
    static const char *const says[] = {"note: a\nWRONG: 7 threads -> end\n",
                                       "WRONG: 9 threads -> end\nnote: a\n", "",
                                       "WRONG: 12 threads -> end\nWRONG: other -> do\n"};
    static char own[MOST][LINKS_TEXT];
    links_job job = healthy_job(4, 2, 0);
    doctor_lines out;
    int r;
    for (r = 0; r < 4; r++) {
        strcpy(own[r], says[r]);
    }
    doctor_lines_init(&out, text, sizeof text);
    links_merge(&job, (const char(*)[LINKS_TEXT])own, &out);
    CHECK_INT(out.wrong, 2);
    CHECK_TEXT(text, "note: rank 0 on n1 and 1 more: a\n"
                     "WRONG: rank 0 on n1 and 2 more: 7 threads -> end\n"
                     "WRONG: rank 3 on n2: other -> do\n");
    job = healthy_job(1000, 8, 0);
    for (r = 0; r < 1000; r++) {
        snprintf(own[r], 64, "WRONG: 8 ranks, %d -> fewer\n", r);
    }
    doctor_lines_init(&out, text, sizeof text);
    links_merge(&job, (const char(*)[LINKS_TEXT])own, &out);
    CHECK_INT(out.wrong, 1);
    CHECK_TEXT(text, "WRONG: all 1000 ranks: 8 ranks, 0 -> fewer\n");
    for (r = 0; r < 1000; r++) {
        snprintf(own[r], 64, "WRONG: %c%c%c -> fewer\n", 'a' + r / 100, 'a' + r / 10 % 10,
                 'a' + r % 10);
    }
    doctor_lines_init(&out, text, sizeof text);
    links_merge(&job, (const char(*)[LINKS_TEXT])own, &out);
    CHECK_INT(out.wrong, 1000);
    CHECK(out.used < 24 * 50); /* a screenful; the others are only counted */
}

/* Checks what a rank stores about its ports. */
static void test_ports(void)
{
    machine_facts facts;
    links_place one;
    int i;
    memset(&facts, 0, sizeof facts);
    memset(&one, 0, sizeof one);
    facts.count = 3;
    strcpy(facts.link[0].name, "lo");
    strcpy(facts.link[1].name, "hsn0");
    strcpy(facts.link[2].name, "eth1"); /* down */
    facts.link[0].up = facts.link[1].up = 1;
    facts.link[1].speed = 200000;
    links_own_ports(&facts, &one);
    CHECK_TEXT(one.ports, "hsn0 200 Gb/s");
    CHECK_INT(one.port, 200000);
    facts.count = 12; /* more than it can hold */
    for (i = 0; i < 12; i++) {
        snprintf(facts.link[i].name, sizeof facts.link[i].name, "ib%d", i);
        facts.link[i].up = 1;
        facts.link[i].speed = i == 11 ? 400000 : 2500;
    }
    memset(&one, 0, sizeof one);
    links_own_ports(&facts, &one);
    CHECK(strncmp(one.ports, "ib0 2.5 Gb/s, ib1 2.5 Gb/s, ", 28) == 0);
    CHECK_TEXT(one.ports + strlen(one.ports) - 8, "b/s, ...");
    CHECK_INT(one.port, 400000);
}

/* Checks the numbers of a rank's job: ranks of its node, and in other containers on its machine. */
static void test_correct(void)
{
    links_job job = healthy_job(6, 2, 0);
    machine_facts facts;
    memset(&facts, 0, sizeof facts);
    strcpy(place[4].boot, place[0].boot);
    strcpy(place[5].boot, place[0].boot);
    links_correct(&job, 1, &facts);
    CHECK(facts.ranks == 2 && facts.beside == 2 && facts.spread == 1);
    links_correct(&job, 2, &facts);
    CHECK(facts.ranks == 2 && facts.beside == 0 && facts.spread == 1);
    job = healthy_job(3, 3, 0);
    links_correct(&job, 2, &facts);
    CHECK(facts.ranks == 3 && facts.beside == 0 && facts.spread == 0);
}

int main(void)
{
    test_rounds();
    test_levels();
    test_nodes();
    test_speeds();
    test_own();
    test_ports();
    test_correct();
    return CHECK_DONE();
}
