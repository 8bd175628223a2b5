/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes the model and strategy readers, and prices what they accept; three lines are the arguments
 * of dpar_plan_query_read: model, machine, options. Has libFuzzer's entry, and with
 * -DDPAR_FUZZ_MAIN a main that feeds argv[1] fixed pseudo-random mutations of the seeds. Run with:
 * tests/compile/fuzz.sh. */
#include "dpar_cost.h"

#include "texts.h"
#include "plan_calls.h"

/* Checks that model, machine and options are accepted, or refused with a message. */
static void ask(const char *text, size_t size)
{
    static dpar_plan_query asked;
    char line[3][256];
    dpar_why why;
    size_t i, k = 0, n = 0;
    for (i = 0; i < size && k < 3; i++) {
        if (text[i] == '\n' || text[i] == 0) {
            line[k++][n] = 0;
            n = 0;
        } else if (n + 1 < sizeof line[0]) {
            line[k][n++] = text[i];
        }
    }
    for (; k < 3; k++, n = 0) {
        line[k][n] = 0;
    }
    why.text[0] = 0;
    if (dpar_plan_query_read(line[0], line[1], line[2], &asked, &why) == DPAR_OK) {
        if (asked.job.work != &asked.work || asked.job.cluster != &asked.cluster) {
            abort();
        }
    } else if (why.text[0] == 0) {
        abort();
    }
}

static void one(const char *text, size_t size)
{
    static dpar_workload w;
    dpar_model m, before;
    dpar_strategy s = plain_strategy();
    dpar_cluster c;
    dpar_job job;
    dpar_plan plan;
    dpar_why why;
    uint32_t named;
    if (memchr(text, '\n', size) != NULL) {
        ask(text, size);
        return;
    }
    (void)dpar_strategy_read(&s, text, size, &named, &why);
    memset(&m, 7, sizeof m);
    memset(&before, 7, sizeof before);
    why.text[0] = 0;
    if (dpar_model_read(&m, text, size, &why) != DPAR_OK) {
        if (why.text[0] == 0 || memcmp(&m, &before, sizeof m) != 0) {
            abort(); /* a refusal has a message and changes nothing */
        }
        return;
    }
    if (memchr(m.name, 0, sizeof m.name) == NULL ||
        dpar_workload_init(&w, &m, 0, &why) != DPAR_OK ||
        dpar_cluster_read(&c, "1x8:h100-80", 11, &why) != DPAR_OK) {
        return;
    }
    job.work = &w;
    job.cluster = &c;
    (void)dpar_recipe_find(&job.recipe, "megatron", &why);
    s = plain_strategy();
    s.dp = 8;
    if (dpar_plan_price(&job, &s, 0, &plan, NULL, &why) == DPAR_OK && !(plan.step.total > 0.0)) {
        abort();
    }
}

#ifdef DPAR_FUZZ_MAIN
static const char *const seed[] = {
    "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048",
    "llama-3-8b,seq=32768",
    "grid:1440x720x100,fields=5,halo=2",
    "unet:image=1440x720,channels=104,hidden=64,levels=4",
    "tp=8,pp=12,dp=4,vp=2,schedule=interleaved,mbs=1,m=64,zero=1,recompute=full",
    "vit:layers=24,hidden=1024,heads=16,image=224x224,patch=16,channels=3",
    "deepseek-v3,capacity=1.2,topk=6,attention=flash1,stack=compiled",
    "t5:layers=2,hidden=64,heads=4,head_width=128,ffn=256,vocab=100,seq=1k,decoder_layers=3",
    "llama:layers=2,hidden=64,heads=4,vocab=100,seq=16,kv_lora=8,q_lora=4,rope_width=4,qk_width=8,"
    "v_width=8,experts=4,topk=2,expert_ffn=32,shared_ffn=16,dense_layers=1,biases=-1,rotary=1",
    "mt-nlg-530b,tied=0,inference=1",
    "llama-3-8b\n2x8:h100-80\nbatch=512 seq=8192 precision=fp8 gpus=12",
    "gpt-3-175b,seq=4k\n8x8:a100-80,nic=8x50\nfix=tp=8,pp=2 stack=torch attention=flash whole",
    "deepseek-v3\n64x8:h100-80\nevaluate=tp=2,pp=8,ep=8,m=16 batch=1024",
    "resnet-50,image=64,element=4,out_channels=10"};

int main(int argc, char **argv)
{
    static const char odd[] = "0123456789.,:=-+eExX{}[]\"\\ntf \0#";
    return feed_texts(argc > 1 ? atol(argv[1]) : 100000, seed, sizeof seed / sizeof seed[0], odd,
                      sizeof odd - 1);
}
#endif
