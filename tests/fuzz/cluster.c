/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes the machine reader. Has libFuzzer's entry, and with -DDPAR_FUZZ_MAIN a main that feeds
 * argv[1] fixed pseudo-random mutations of the seeds. Run with: tests/compile/fuzz.sh. */
#include "dpar_cost.h"

#include "texts.h"
#include "plan_calls.h"

static void one(const char *text, size_t size)
{
    dpar_cluster c;
    dpar_why why;
    why.text[0] = 0;
    if (dpar_cluster_read(&c, text, size, &why) == DPAR_OK) {
        int32_t gpus = dpari_cluster_gpus(&c), stride, kind;
        for (stride = 1; stride < 20; stride *= 3) {
            dpar_cluster_group g = group_of(&c, gpus, stride);
            for (kind = 0; kind < DPAR_CALL_COLLECTIVE_COUNT; kind++) {
                dpar_collective_cost cost;
                dpar_collective_predict(&c, &g, kind, 1e6, &cost);
                if (!(cost.seconds >= 0.0 && cost.seconds < 1e30)) {
                    abort(); /* what is accepted must be usable */
                }
            }
        }
        if (dpari_cluster_check(&c, &why) != DPAR_OK ||
            dpar_cluster_resize(&c, gpus, &why) != DPAR_OK || dpari_cluster_gpus(&c) != gpus) {
            abort();
        }
    } else if (why.text[0] == 0) {
        abort(); /* what is refused must be explained */
    }
}

#ifdef DPAR_FUZZ_MAIN
static const char *const seed[] = {"8x8:h100-80,nvlink=450,nic=8x50,gemm=0.7",
                                   "machine = derecho\nnodes = 16 # a comment\nnic=4x25\n",
                                   "16xdgx-h100,taper=0.5", "64:a100-80,sharp=1"};

int main(int argc, char **argv)
{
    static const char odd[] = "0123456789.,:=-+eExX{}[]\"\\ntf \0#";
    return feed_texts(argc > 1 ? atol(argv[1]) : 100000, seed, sizeof seed / sizeof seed[0], odd,
                      sizeof odd - 1);
}
#endif
