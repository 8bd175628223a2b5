/* SPDX-License-Identifier: MIT-0 */
/* Tests cluster: presets are usable and name the sources of their numbers; the text form and its
 * refusals. Run with: tests/run test cost. */
#include "dpar_cost.h"

#include "check.h"

static dpar_status gpu_find(dpar_gpu *g, const char *name, dpar_why *why)
{
    return dpari_gpu_slice(g, name, strlen(name), why);
}

static dpar_status parse(const char *text, dpar_cluster *c, dpar_why *why)
{
    return dpar_cluster_read(c, text, strlen(text), why);
}

static void test_presets(void)
{
    dpar_cluster c;
    dpar_gpu g;
    dpar_why why;
    int i, n = 0;
    for (i = 0; dpar_gpu_name(i) != NULL; i++) {
        CHECK_INT(gpu_find(&g, dpar_gpu_name(i), &why), DPAR_OK);
        CHECK(g.source[0] != 0 && g.memory_bytes > 1e9);
        CHECK(g.generation == DPAR_GEN_CPU || (g.memory_bytes > 1e10 && g.flops[DPAR_BF16] > 7e13));
        n++;
    }
    CHECK_INT(n, 38);
    for (i = 0; dpar_cluster_name(i) != NULL; i++) {
        CHECK_INT(dpar_cluster_find(&c, dpar_cluster_name(i), &why), DPAR_OK);
        CHECK_INT(dpari_cluster_check(&c, &why), DPAR_OK);
        CHECK(c.source[0] != 0 && c.cal.source[0] != 0 && strstr(c.source, "20") != NULL);
    }
    CHECK(i >= 39);
    /* the facts' table of hardware: NCAR Derecho 82 x 4 A100-40, DGX H100 8 x 50 GB/s */
    CHECK_INT(dpar_cluster_find(&c, "Derecho", &why), DPAR_OK);
    CHECK_INT(dpari_cluster_gpus(&c), 328);
    CHECK_TEXT(c.gpu.name, "a100-40");
    CHECK_INT(dpar_cluster_find(&c, "dgx-h100", &why), DPAR_OK);
    CHECK_NEAR(c.nics * c.nic_Bps, 400e9, 1e-6);
    CHECK_NEAR(c.gpu.flops[DPAR_BF16], 989e12, 1e-6);
    CHECK_INT(dpar_cluster_find(&c, "derecha", &why), DPAR_E_UNKNOWN);
    CHECK(strstr(why.text, "derecho") != NULL);
    CHECK_INT(gpu_find(&g, "h100-8", &why), DPAR_E_UNKNOWN);
    CHECK(strstr(why.text, "h100") != NULL);
}

static void test_text(void)
{
    dpar_cluster c;
    dpar_why why;
    CHECK_INT(parse("8x8:h100-80,nvlink=450,nic=8x50,gemm=0.7,launch_us=7", &c, &why), DPAR_OK);
    CHECK_INT(dpari_cluster_gpus(&c), 64);
    CHECK_NEAR(c.link_Bps, 450e9, 1e-12);
    CHECK_NEAR(c.nic_Bps, 50e9, 1e-12);
    CHECK_NEAR(c.cal.value[DPAR_CAL_GEMM], 0.7, 1e-12);
    CHECK_NEAR(c.cal.value[DPAR_CAL_LAUNCH_S], 7e-6, 1e-12);
    CHECK_INT(parse("machine = derecho # a file\n\nnodes = 16\nnic = 1x25 # probed\n", &c, &why),
              DPAR_OK);
    CHECK_INT(c.nodes, 16);
    CHECK_INT(c.nics, 1);
    CHECK_INT(parse("DERECHO,Nodes=2\r\n", &c, &why), DPAR_OK);
    CHECK_INT(dpari_cluster_gpus(&c), 8);
    CHECK_INT(parse("16xdgx-h100", &c, &why), DPAR_OK);
    CHECK_INT(dpari_cluster_gpus(&c), 128);
    CHECK_INT(parse("64:a100-80", &c, &why), DPAR_OK);
    CHECK_INT(c.nodes, 1);
    CHECK_INT(parse("4:a100-80,hbm=1600,memory=70", &c, &why), DPAR_OK);
    CHECK_NEAR(c.gpu.memory_Bps, 1600e9, 1e-12);
    CHECK_NEAR(c.gpu.memory_bytes, 70e9, 1e-12);
    CHECK_TEXT(dpar_calibration_name(DPAR_CAL_NET_SHARE), "net_share");
    CHECK_TEXT(dpar_calibration_name(DPAR_CAL_HBM), "hbm");
    CHECK(dpar_calibration_name(DPAR_CAL_COUNT) == NULL && dpar_calibration_name(-1) == NULL);
}

/* Checks that missing settings are taken from the chip, and that the order of settings does not
 * matter. */
static void test_defaults(void)
{
    dpar_cluster c, d;
    dpar_why why;
    CHECK_INT(parse("8x8:a100-80", &c, &why), DPAR_OK);
    CHECK(c.link_Bps == 300e9 && c.link_switched && !c.link_reduces);
    CHECK(c.nics == 8 && c.nic_Bps == 25e9);
    CHECK_INT(parse("2x8:l40s", &c, &why), DPAR_OK); /* no NVLink: PCIe */
    CHECK(c.link_Bps == 31e9 && !c.link_reduces);
    CHECK_INT(parse("2x8:h100-pcie", &c, &why), DPAR_OK);
    CHECK(c.link_Bps == 63e9 && !c.link_reduces);
    CHECK_INT(parse("2x8:h800", &c, &why), DPAR_OK);
    CHECK(c.link_Bps == 200e9);
    CHECK_INT(parse("2x4:gh200", &c, &why), DPAR_OK); /* direct links, 150 per pair */
    CHECK(c.link_Bps == 450e9 && !c.link_switched && !c.link_reduces);
    CHECK_INT(parse("4x8:h100-80,gpus=4", &c, &why), DPAR_OK); /* NICs follow */
    CHECK_INT(c.nics, 4);
    CHECK_INT(parse("4x8:h100-80,nic=2x25,gpus=4", &c, &why), DPAR_OK);
    CHECK_INT(c.nics, 2);
    CHECK_INT(parse("4x8:h100-80,gpus=4,nic=2x25", &d, &why), DPAR_OK);
    CHECK(memcmp(&c, &d, sizeof c) == 0);
    CHECK_INT(parse("8:h100-80,nodes=4", &c, &why), DPAR_OK); /* more nodes need NICs */
    CHECK_INT(c.nics, 8);
    CHECK_INT(parse("8x4:a100-40,gpu=h100-80", &c, &why), DPAR_OK);
    CHECK(c.link_Bps == 450e9);
    CHECK_INT(parse("gemm=0.5", &c, &why), DPAR_E_PARSE); /* neither a machine nor gpu= */
    CHECK(strstr(why.text, "gpu=NAME") != NULL);
    /* only settings, in any order, after the byte order mark that some editors write */
    CHECK_INT(parse("\xEF\xBB\xBFnodes = 4\ngpus = 8\nnic = 8x50\ngpu = H100-80\n", &c, &why),
              DPAR_OK);
    CHECK(c.nodes == 4 && c.gpus_per_node == 8 && c.nics == 8 && dpari_cluster_gpus(&c) == 32);
    CHECK_TEXT(c.gpu.name, "h100-80");
    CHECK_INT(parse("8X8:H100-80", &c, &why), DPAR_OK);
    CHECK_INT(dpari_cluster_gpus(&c), 64);
    CHECK_INT(parse("16Xdgx-h100", &c, &why), DPAR_OK);
    CHECK_INT(c.nodes, 16);
    CHECK_INT(parse("dgx-a100,gemm=0.5,gpu=a100-40", &c, &why), DPAR_OK);
    CHECK_NEAR(c.cal.value[DPAR_CAL_GEMM], 0.5, 1e-12);
    /* another chip in a named machine: its links and its network stay */
    CHECK_INT(parse("derecho", &c, &why), DPAR_OK);
    CHECK_INT(parse("derecho,gpu=h100-80", &d, &why), DPAR_OK);
    CHECK(d.link_Bps == c.link_Bps && d.gpu.generation == DPAR_GEN_HOPPER);
    CHECK_NEAR(d.cal.value[DPAR_CAL_NET_S], c.cal.value[DPAR_CAL_NET_S], 1e-12);
}

/* Checks traps of the data sheets (facts T14). */
static void test_traps(void)
{
    dpar_cluster c;
    dpar_gpu g;
    CHECK_INT(gpu_find(&g, "mi250x", NULL), DPAR_OK); /* one GCD, not the package */
    CHECK_NEAR(g.flops[DPAR_BF16], 191.5e12, 1e-6);
    CHECK_NEAR(g.memory_bytes, 64.0 * 1073741824.0, 1e-3);
    CHECK_INT(gpu_find(&g, "gb200", NULL), DPAR_OK); /* one GPU of the two, dense */
    CHECK_NEAR(g.flops[DPAR_BF16], 2500e12, 1e-6);
    CHECK_INT(gpu_find(&g, "A100-80", NULL), DPAR_OK);
    CHECK_NEAR(g.flops[DPAR_BF16], 312e12, 1e-6); /* without sparsity */
    CHECK_NEAR(g.memory_bytes, 80.0 * 1073741824.0, 1e-3);
    CHECK_INT(gpu_find(&g, "h100-80", NULL), DPAR_OK);
    CHECK_NEAR(g.memory_bytes, 81559.0 * 1048576.0, 1e-3);
    CHECK_INT(dpar_cluster_find(&c, "frontier", NULL), DPAR_OK); /* 12.5 GB/s per GCD */
    CHECK_NEAR(c.nics * c.nic_Bps / c.gpus_per_node, 12.5e9, 1e-6);
    CHECK_INT(dpar_cluster_find(&c, "derecho", NULL), DPAR_OK); /* direct links; a disputed NIC */
    CHECK(!c.link_switched && strstr(c.source, "probe") != NULL);
    CHECK_NEAR(c.nics * c.nic_Bps / c.gpus_per_node, 25e9, 1e-6);
    CHECK_INT(dpar_cluster_find(&c, "p4d", NULL), DPAR_OK); /* Gb, not GB; 42.5 effective */
    CHECK_NEAR(c.nics * c.nic_Bps * c.cal.value[DPAR_CAL_NET_SHARE], 42.5e9, 1e-6);
    CHECK_INT(dpar_cluster_find(&c, "summit", NULL), DPAR_OK);
    CHECK_NEAR(c.nics * c.nic_Bps, 23e9, 1e-6);
}

/* Checks a machine as doctor --cluster writes it: each number is read into its field, in its
 * unit. */
static void test_measured(void)
{
    static const char text[] = "# a comment, with = and 1x2\n"
                               "machine = 2x2:core\n"
                               "settings = 18\n"
                               "memory = 12\nstream = 1.5\ntflops32 = 0.046\ntflops64 = 0.023\n"
                               "launch_us = 0.003\nnic = 1x1.8\n"
                               "link_reduce = 2x8x0.25 # us\nlink_reduce = 2x65536x2\n"
                               "link_send = 2x8x0.125\nnet_reduce = 2x8x8\nnet_send = 2x8x6.5\n"
                               "halo_copy = 60\nhalo_run = 0.5\nhalo_peer = 0.05\nhalo_msg = 9\n"
                               "halo_nic = 1.25\nhalo_cache = 8\nhalo_far = 2\n";
    dpar_cluster c;
    dpar_why why;
    size_t n;
    CHECK_INT(parse(text, &c, &why), DPAR_OK);
    CHECK(c.nodes == 2 && c.gpus_per_node == 2 && c.gpu.generation == DPAR_GEN_CPU);
    CHECK_NEAR(c.gpu.memory_bytes, 12e9, 1e-12);
    CHECK_NEAR(c.gpu.memory_Bps, 1.5e9, 1e-12); /* hbm=1.5 would be a fraction */
    CHECK_NEAR(c.gpu.flops[DPAR_F32], 46e9, 1e-12);
    CHECK_NEAR(c.gpu.flops[DPAR_F64], 23e9, 1e-12);
    CHECK_NEAR(c.cal.value[DPAR_CAL_LAUNCH_S], 3e-9, 1e-12);
    CHECK_NEAR(c.nic_Bps, 1.8e9, 1e-12);
    CHECK(c.curve[DPAR_CURVE_LINK].count == 2 && c.curve[DPAR_CURVE_LINK].ranks == 2);
    CHECK_NEAR(c.curve[DPAR_CURVE_LINK].seconds[1], 2e-6, 1e-12);
    CHECK_NEAR(c.curve[DPAR_CURVE_LINK].bytes[1], 65536, 0);
    CHECK_NEAR(c.curve[DPAR_CURVE_LINK_SEND].seconds[0], 0.125e-6, 1e-12);
    CHECK_NEAR(c.curve[DPAR_CURVE_NET].seconds[0], 8e-6, 1e-12);
    CHECK_NEAR(c.curve[DPAR_CURVE_NET_SEND].seconds[0], 6.5e-6, 1e-12);
    CHECK_NEAR(c.halo.copy_Bps, 60e9, 1e-12);
    CHECK_NEAR(c.halo.run_s, 0.5e-9, 1e-12);
    CHECK_NEAR(c.halo.peer_s, 0.05e-6, 1e-12);
    CHECK_NEAR(c.halo.message_s, 9e-6, 1e-12);
    CHECK_NEAR(c.halo.nic_Bps, 1.25e9, 1e-12);
    CHECK_NEAR(c.halo.cache_bytes, 8e6, 1e-12);
    CHECK_NEAR(c.halo.far_s, 2e-9, 1e-12);
    /* a truncated file is refused wherever it ends, except within its last digits */
    for (n = 48; n < sizeof text - 6; n++) {
        if (dpar_cluster_read(&c, text, n, &why) == DPAR_OK) {
            printf("cut after %d bytes\n", (int)n);
            CHECK(0);
        }
    }
    CHECK_INT(dpar_cluster_read(&c, text, (size_t)(strstr(text, "halo_run") - text), &why),
              DPAR_E_PARSE);
    CHECK_TEXT(why.text, "line 15: the file ends too early: 6 settings are missing");
    CHECK_INT(parse("8:core", &c, &why), DPAR_OK); /* the default rates of halos */
    CHECK_NEAR(c.halo.copy_Bps, 20e9, 1e-12);
    CHECK(c.curve[DPAR_CURVE_LINK].count == 0);
}

/* Checks that the message about a file names the line. */
static void test_lines(void)
{
    static const char *const refused[] = {
        "2x1:core\nstream = nan\n",
        "line 2: 'stream=nan': a number of 0 to 1e15 was expected",
        "2x1:core\nhalo_run = -1\n",
        "line 2: 'halo_run=-1': a number of 0 to 1e15 was expected",
        "\n\n2x1:core\nhalo_nic = inf\n",
        "line 4: 'halo_nic=inf': a number of 0 to 1e15 was expected",
        "2x1:core\nnet_reduce = 2x8\n",
        "line 2: 'net_reduce=2x8': RANKSxBYTESxMICROSECONDS with 2 or more ranks, "
        "ascending bytes and at most 16 points was expected",
        "2x1:core\nnet_send = 2x8x1\nnet_send = 2x8x1\n",
        "line 3: 'net_send=2x8x1': RANKSxBYTESxMICROSECONDS with 2 or more ranks, "
        "ascending bytes and at most 16 points was expected",
        "2x1:core\nnet_send = 2x8xnan\n",
        "line 2: 'net_send=2x8xnan': RANKSxBYTESxMICROSECONDS with 2 or more ranks, "
        "ascending bytes and at most 16 points was expected",
        "2x1:core\nnet_send = 1x8x1\n",
        "line 2: 'net_send=1x8x1': RANKSxBYTESxMICROSECONDS with 2 or more ranks, "
        "ascending bytes and at most 16 points was expected",
        "2x1:cores\nnodes = 2\n",
        "line 1: unknown GPU 'cores'; the nearest is 'core'"};
    dpar_cluster c;
    dpar_why why;
    char text[600] = "1:core";
    int i;
    for (i = 0; i < (int)(sizeof refused / sizeof *refused); i += 2) {
        why.text[0] = 0;
        CHECK(parse(refused[i], &c, &why) < 0);
        CHECK_TEXT(why.text, refused[i + 1]);
    }
    CHECK_INT(parse("2x1:core,stream=nan", &c, NULL), DPAR_E_PARSE);
    CHECK_INT(parse("2x1:core\nstream=nan", &c, NULL), DPAR_E_PARSE);
    for (i = 1; i <= 17; i++) {
        snprintf(text + strlen(text), 40, ",link_send=2x%dx1", i);
        CHECK_INT(parse(text, &c, &why), i <= 16 ? DPAR_OK : DPAR_E_PARSE);
    }
}

/* Checks that the message names a misspelt word and the nearest known one. */
static void test_nearest(void)
{
    dpar_cluster c;
    dpar_gpu g;
    dpar_why why;
    CHECK_INT(parse("perlmuter", &c, &why), DPAR_E_UNKNOWN);
    CHECK(strstr(why.text, "'perlmuter'") != NULL && strstr(why.text, "'perlmutter'") != NULL);
    CHECK_INT(parse("8x8:h10-80", &c, &why), DPAR_E_UNKNOWN);
    CHECK_TEXT(why.text, "unknown GPU 'h10-80'; the nearest is 'h100-80'");
    CHECK_INT(parse("dgx-h100,nvlnk=3", &c, &why), DPAR_E_PARSE);
    CHECK(strstr(why.text, "'nvlnk'") != NULL && strstr(why.text, "'nvlink'") != NULL);
    CHECK_INT(parse("dgx-h100,net_shre=3", &c, &why), DPAR_E_PARSE);
    CHECK(strstr(why.text, "'net_share'") != NULL);
    CHECK_INT(parse("dgx-h100,nvlink=fast", &c, &why), DPAR_E_PARSE);
    CHECK_TEXT(why.text, "'nvlink=fast': a number of 0 to 1e15 was expected");
    CHECK_INT(gpu_find(&g, "", &why), DPAR_E_UNKNOWN);
    CHECK_INT(gpu_find(&g, "a-very-long-name-that-no-table-has-of-a-machine-that-is-none", &why),
              DPAR_E_UNKNOWN);
}

static void test_resize(void)
{
    dpar_cluster c, before;
    dpar_why why;
    CHECK_INT(dpar_cluster_find(&c, "dgx-h100", &why), DPAR_OK);
    CHECK_INT(dpar_cluster_resize(&c, 64, &why), DPAR_OK);
    CHECK_INT(c.nodes, 8);
    CHECK_INT(dpar_cluster_resize(&c, 2, &why), DPAR_OK);
    CHECK(c.nodes == 1 && c.gpus_per_node == 2 && c.nics == 2);
    CHECK_INT(parse("8:h100-80", &c, &why), DPAR_OK);
    before = c;
    CHECK_INT(dpar_cluster_resize(&c, 64, &why), DPAR_E_ARG); /* no network was described */
    CHECK(memcmp(&c, &before, sizeof c) == 0 && strstr(why.text, "nic=") != NULL);
    CHECK_INT(dpar_cluster_resize(&c, 2147483647, &why), DPAR_E_DIVIDE);
    CHECK(memcmp(&c, &before, sizeof c) == 0);
}

static void test_refusals(void)
{
    static const char *const bad[] = {"",
                                      "   ",
                                      "# nothing",
                                      "0x8:h100-80",
                                      "8x0:h100-80",
                                      "8x8",
                                      "8x8:",
                                      "8x8:h99",
                                      "8x-8:h100-80",
                                      "8x8:h100-80,nvlink=nan",
                                      "8x8:h100-80,nvlink=-1",
                                      "8x8:h100-80,nvlink=",
                                      "8x8:h100-80,nvlink=0",
                                      "8x8:h100-80,nic=0x50",
                                      "8x8:h100-80,nic=8",
                                      "8x8:h100-80,nic=8x0",
                                      "8x8:h100-80,taper=0",
                                      "8x8:h100-80,taper=2",
                                      "8x8:h100-80,colour=red",
                                      "8x8:h100-80,memory=inf",
                                      "1000000000000000000x8:h100-80",
                                      "10000000x65536:h100-80",
                                      "8x8:h100-80,gemm=0",
                                      "8x8:h100-80,gemm=1e9",
                                      "8x8:h100-80,nodes=0",
                                      "dgx-h100,nodes=1e3",
                                      "8x8:h100-80,nvlink=1e400",
                                      "8y8:h100-80",
                                      "8x8:h100-80,memory=1e18",
                                      "8x8:h100-80,nvlink=1000000000000000000",
                                      "8x8:h100-80,tflops=1e18",
                                      "8x8:h100-80,host=-5",
                                      "8x8:h100-80,pcie=1e30",
                                      "8x8:h100-80,gemm=-0.5",
                                      "8x8:h100-80,gemm=70",
                                      "8x8:h100-80,launch_us=1e9",
                                      "8x8:h100-80,nic=8x50x2",
                                      "8x8:h100-80,nic=1e3x50",
                                      "8x8:h100-80,gpu=",
                                      "8x8:h100-80,gpu=h9",
                                      "8x8:h100-80,gpus=0",
                                      "8x8:h100-80,nodes=",
                                      "8x8:h100-80,=5",
                                      "8x8:h100-80,nvlink",
                                      "8x8:h100-80,machine=derecho",
                                      "8x8:h100-80,derecho",
                                      ":h100-80",
                                      "x8:h100-80",
                                      "8x:h100-80",
                                      "8xx8:h100-80",
                                      "0xdgx-h100",
                                      "machine=",
                                      "nonsense"};
    dpar_cluster c, before;
    dpar_why why;
    size_t i;
    memset(&c, 5, sizeof c);
    before = c;
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        why.text[0] = 0;
        CHECK(parse(bad[i], &c, &why) < 0);
        CHECK(strlen(why.text) > 10);
        CHECK(memcmp(&c, &before, sizeof c) == 0);
    }
    CHECK_INT(dpar_cluster_find(&c, "dgx-a100", &why), DPAR_OK);
    CHECK_INT(dpar_cluster_resize(&c, 12, &why), DPAR_E_DIVIDE);
    CHECK_INT(dpar_cluster_resize(&c, 0, &why), DPAR_E_ARG);
    CHECK_INT(dpar_cluster_resize(&c, 4, &why), DPAR_OK);
    CHECK_INT(dpari_cluster_gpus(&c), 4);
    c.gpu.memory_Bps = HUGE_VAL - HUGE_VAL;
    CHECK_INT(dpari_cluster_check(&c, &why), DPAR_E_ARG);
}

int main(void)
{
    dpar_calibration cal;
    dpar_calibration_init(&cal, 999);
    CHECK(cal.value[DPAR_CAL_GEMM] > 0.0);
    test_presets();
    test_text();
    test_defaults();
    test_traps();
    test_measured();
    test_lines();
    test_nearest();
    test_resize();
    test_refusals();
    return CHECK_DONE();
}
