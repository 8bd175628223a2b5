/* SPDX-License-Identifier: MIT-0 */
/* cluster: presets are usable and say where their numbers are from; the text form and its refusals.
 */
#include "dpar.h"

#include "check.h"

static dpar_status parse(const char *text, dpar_cluster *c, dpar_why *why)
{
    return dpar_cluster_parse(c, text, strlen(text), why);
}

static void test_presets(void)
{
    dpar_cluster c;
    dpar_gpu g;
    dpar_why why;
    int i, n = 0;
    for (i = 0; dpar_gpu_name(i) != NULL; i++) {
        CHECK_INT(dpar_gpu_preset(&g, dpar_gpu_name(i), &why), DPAR_OK);
        CHECK(g.source[0] != 0 && g.memory_bytes > 1e10 && g.flops[DPAR_BF16] > 1e14);
        n++;
    }
    CHECK_INT(n, 26);
    for (i = 0; dpar_cluster_name(i) != NULL; i++) {
        CHECK_INT(dpar_cluster_preset(&c, dpar_cluster_name(i), &why), DPAR_OK);
        CHECK_INT(dpar_cluster_check(&c, &why), DPAR_OK);
        CHECK(c.source[0] != 0 && c.cal.source[0] != 0);
    }
    CHECK(i >= 25);
    /* the facts' table of hardware: NCAR Derecho 82 x 4 A100-40, DGX H100 8 x 50 GB/s */
    CHECK_INT(dpar_cluster_preset(&c, "Derecho", &why), DPAR_OK);
    CHECK_INT(dpar_cluster_gpus(&c), 328);
    CHECK_TEXT(c.gpu.name, "a100-40");
    CHECK_INT(dpar_cluster_preset(&c, "dgx-h100", &why), DPAR_OK);
    CHECK_NEAR(c.nics * c.nic_Bps, 400e9, 1e-6);
    CHECK_NEAR(c.gpu.flops[DPAR_BF16], 989e12, 1e-6);
    CHECK_INT(dpar_cluster_preset(&c, "derecha", &why), DPAR_E_UNKNOWN);
    CHECK(strstr(why.text, "derecho") != NULL);
    CHECK_INT(dpar_gpu_preset(&g, "h100-8", &why), DPAR_E_UNKNOWN);
    CHECK(strstr(why.text, "h100") != NULL);
}

static void test_text(void)
{
    dpar_cluster c;
    dpar_why why;
    CHECK_INT(parse("8x8:h100-80,nvlink=450,nic=8x50,gemm=0.7,launch_us=7", &c, &why), DPAR_OK);
    CHECK_INT(dpar_cluster_gpus(&c), 64);
    CHECK_NEAR(c.link_Bps, 450e9, 1e-12);
    CHECK_NEAR(c.nic_Bps, 50e9, 1e-12);
    CHECK_NEAR(c.cal.value[DPAR_CAL_GEMM], 0.7, 1e-12);
    CHECK_NEAR(c.cal.value[DPAR_CAL_LAUNCH_S], 7e-6, 1e-12);
    CHECK_INT(parse("machine = derecho # a file\n\nnodes = 16\nnic = 1x25 # probed\n", &c, &why),
              DPAR_OK);
    CHECK_INT(c.nodes, 16);
    CHECK_INT(c.nics, 1);
    CHECK_INT(parse("16xdgx-h100", &c, &why), DPAR_OK);
    CHECK_INT(dpar_cluster_gpus(&c), 128);
    CHECK_INT(parse("64:a100-80", &c, &why), DPAR_OK);
    CHECK_INT(c.nodes, 1);
    CHECK_INT(parse("4:a100-80,hbm=1600,memory=70", &c, &why), DPAR_OK);
    CHECK_NEAR(c.gpu.memory_Bps, 1600e9, 1e-12);
    CHECK_NEAR(c.gpu.memory_bytes, 70e9, 1e-12);
    CHECK_INT(dpar_calibration_find("net_share", 9), DPAR_CAL_NET_SHARE);
    CHECK_TEXT(dpar_calibration_name(DPAR_CAL_HBM), "hbm");
    CHECK_INT(dpar_calibration_find("nothing", 7), -1);
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
    CHECK_INT(dpar_cluster_preset(&c, "dgx-a100", &why), DPAR_OK);
    CHECK_INT(dpar_cluster_resize(&c, 12, &why), DPAR_E_DIVIDE);
    CHECK_INT(dpar_cluster_resize(&c, 0, &why), DPAR_E_ARG);
    CHECK_INT(dpar_cluster_resize(&c, 4, &why), DPAR_OK);
    CHECK_INT(dpar_cluster_gpus(&c), 4);
    c.gpu.memory_Bps = HUGE_VAL - HUGE_VAL;
    CHECK_INT(dpar_cluster_check(&c, &why), DPAR_E_ARG);
}

int main(void)
{
    dpar_calibration cal;
    dpar_calibration_default(&cal, 999);
    CHECK(cal.value[DPAR_CAL_GEMM] > 0.0);
    test_presets();
    test_text();
    test_refusals();
    return CHECK_DONE();
}
