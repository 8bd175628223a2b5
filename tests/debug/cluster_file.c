/* SPDX-License-Identifier: MIT-0 */
/* Tests the cluster file of doctor --cluster (helpers/measure.h): a written file can be read
 * again, the rates of halos are recovered from times that such rates give, and a measurement
 * replaces only a worse one. Run with: tests/run test debug. */
#include "dpar_cost.h"
#include "dpar_halo.h"

static const char program[] = "cluster_file";
static const char help[] = "";

#include "../../helpers/options.h"

#include "../../helpers/measure.h"

#include "check.h"

/* Makes numbers that are no defaults. */
static measured example(int32_t ranks, int32_t nodes)
{
    measured m;
    int i, k;
    memset(&m, 0, sizeof m);
    m.ranks = ranks;
    m.nodes = nodes;
    m.memory_bytes = 12.25e9;
    m.stream_Bps = 1.75e9;
    m.flops32 = 47.5e9;
    m.flops64 = 23.25e9;
    m.launch_s = 3.5e-9;
    m.halo.copy_Bps = 57.5e9;
    m.halo.run_s = 0.625e-9;
    m.halo.peer_s = 55e-9;
    m.halo.message_s = nodes > 1 ? 9.5e-6 : 0.0;
    m.halo.nic_Bps = nodes > 1 ? 1.125e9 : 0.0;
    m.halo.cache_bytes = nodes > 1 ? 0.0 : 8e6;
    m.halo.far_s = nodes > 1 ? 0.0 : 1.875e-9;
    for (i = 0; i < DPAR_CURVE_COUNT; i++) {
        if (i < DPAR_CURVE_NET ? ranks > nodes : nodes > 1) {
            m.curve[i].ranks = i < DPAR_CURVE_NET ? ranks / nodes : nodes;
            for (k = 0; k < 14 - i; k++) {
                m.curve[i].bytes[k] = (double)measure_bytes(k);
                m.curve[i].seconds[k] = 1e-6 * (i + 1) * (k + 0.5);
                m.curve[i].count = k + 1;
            }
        }
    }
    for (i = 0; i < MEASURE_SIZES; i++) {
        m.at[i] = measure_sizes[i];
        m.at[i].seconds = measure_predicted(&m.at[i], &m, &m.halo);
    }
    return m;
}

static void check_halo(const dpar_halo_rates *a, const dpar_halo_rates *b, double off)
{
    CHECK_NEAR(a->copy_Bps, b->copy_Bps, off);
    CHECK_NEAR(a->run_s, b->run_s, off);
    CHECK_NEAR(a->peer_s, b->peer_s, off);
    CHECK_NEAR(a->message_s, b->message_s, off);
    CHECK_NEAR(a->nic_Bps, b->nic_Bps, off);
    CHECK_NEAR(a->far_s, b->far_s, off);
}

/* Returns the text of a file; "" if there is none. */
static char *text_of(const char *path)
{
    static char text[65536];
    FILE *f = fopen(path, "rb");
    size_t n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = 0;
    if (f != NULL) {
        fclose(f);
    }
    return text;
}

static void round_trip(const char *path, int32_t ranks, int32_t nodes)
{
    const measured m = example(ranks, nodes);
    const char *text;
    dpar_cluster c;
    dpar_why why;
    int i, k;
    CHECK_INT(cluster_write(path, &m, "a test"), 0);
    text = text_of(path);
    why.text[0] = 0;
    CHECK_INT(dpar_cluster_read(&c, text, strlen(text), &why), DPAR_OK);
    CHECK_TEXT(why.text, "");
    CHECK(c.nodes == nodes && c.gpus_per_node == ranks / nodes);
    CHECK_NEAR(c.gpu.memory_bytes, m.memory_bytes, 1e-12);
    CHECK_NEAR(c.gpu.memory_Bps, m.stream_Bps, 1e-12);
    CHECK_NEAR(c.gpu.flops[DPAR_F32], m.flops32, 1e-12);
    CHECK_NEAR(c.gpu.flops[DPAR_F64], m.flops64, 1e-12);
    CHECK_NEAR(c.cal.value[DPAR_CAL_LAUNCH_S], m.launch_s, 1e-12);
    CHECK_NEAR(c.cal.value[DPAR_CAL_CONTENTION], 1.0, 0);
    CHECK_NEAR(c.cal.value[DPAR_CAL_SKEW], 0.0, 0);
    check_halo(&c.halo, &m.halo, 1e-12);
    CHECK_NEAR(c.halo.cache_bytes, m.halo.cache_bytes, 1e-12);
    for (i = 0; i < DPAR_CURVE_COUNT; i++) {
        CHECK_INT(c.curve[i].count, m.curve[i].count);
        CHECK(c.curve[i].count == 0 || c.curve[i].ranks == m.curve[i].ranks);
        for (k = 0; k < c.curve[i].count; k++) {
            CHECK_NEAR(c.curve[i].bytes[k], m.curve[i].bytes[k], 0);
            CHECK_NEAR(c.curve[i].seconds[k], m.curve[i].seconds[k], 1e-12);
        }
    }
    for (i = (int)strlen(text) - 80; i > 400; i -= 7) { /* truncated anywhere */
        CHECK(dpar_cluster_read(&c, text, (size_t)i, &why) < 0);
    }
    CHECK(cluster_write("/none/such", &m, "") == 1);
}

/* Checks that the fit reproduces the times, and in a node the rates that made them. Between nodes
 * bytes copied and bytes sent are nearly in proportion, and peers and messages are if ranks have
 * one of each, so that other rates give the same times. */
static void fits(int32_t ranks, int32_t nodes)
{
    measured m = example(ranks, nodes);
    const dpar_halo_rates want = m.halo;
    memset(&m.halo, 0, sizeof m.halo);
    CHECK(measure_fit(&m) < 0.02);
    if (nodes == 1) { /* between the blocks of 96^3 and 112^3 with halos of 2 and 1 */
        check_halo(&m.halo, &want, 0.05);
        CHECK(m.halo.cache_bytes >= 8e6 && m.halo.cache_bytes < 114.0 * 114 * 114 * 8);
    }
}

static void better(const char *path)
{
    measured m = example(2, 1), was = m;
    dpar_cluster c;
    dpar_why why;
    const char *text;
    m.stream_Bps *= 2.0;
    m.launch_s *= 2.0;
    m.curve[0].seconds[3] *= 0.5;
    m.curve[0].seconds[4] *= 3.0;
    m.at[2].seconds *= 0.5;
    m.at[5].seconds *= 3.0;
    CHECK_INT(cluster_write(path, &was, "a test"), 0);
    text = text_of(path);
    CHECK_INT(dpar_cluster_read(&c, text, strlen(text), &why), DPAR_OK);
    CHECK_INT(measure_better(&m, &c, text), 1);
    CHECK_NEAR(m.stream_Bps, 2.0 * was.stream_Bps, 1e-12);
    CHECK_NEAR(m.launch_s, was.launch_s, 1e-12);
    CHECK_NEAR(m.curve[0].seconds[3], 0.5 * was.curve[0].seconds[3], 1e-12);
    CHECK_NEAR(m.curve[0].seconds[4], was.curve[0].seconds[4], 1e-12);
    CHECK_NEAR(m.at[2].seconds, 0.5 * was.at[2].seconds, 1e-12);
    CHECK_NEAR(m.at[5].seconds, was.at[5].seconds, 1e-5);
    m.ranks = 4;
    CHECK_INT(measure_better(&m, &c, text), 0);
}

int main(void)
{
    char path[100];
    snprintf(path, sizeof path, "/tmp/dpar_cluster_file.%d", (int)getpid());
    round_trip(path, 2, 1);
    round_trip(path, 2, 2);
    round_trip(path, 8, 2);
    round_trip(path, 1, 1);
    fits(2, 1);
    fits(2, 2);
    fits(4, 2);
    better(path);
    remove(path);
    return CHECK_DONE();
}
