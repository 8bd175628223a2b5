/* SPDX-License-Identifier: MIT-0 */
/* Strategies: the recipes, the text form, and the rules that a legal strategy obeys. The planner
 * checks every strategy that it prices with dpari_strategy_check. */
#include "strategy.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "cost_private.h"
#include "fields.h"

/* ---- names ----------------------------------------------------------------------------------- */

/* The names of DPAR_RECOMPUTE_*: the four values, then the bits. */
static const char dpari_recompute_word[7][12] = {"none", "selective",  "full",   "alternate",
                                                 "norm", "activation", "experts"};

DPARI_INTERNAL DPARI_COLD void dpari_write_recompute(dpar_text *text, int32_t recompute)
{
    int32_t i;
    if ((recompute & 3) > 0 || recompute == 0) {
        dpar_text_put(text, dpari_recompute_word[recompute & 3]);
    }
    for (i = 0; i < 3; i++) {
        if (recompute >> (2 + i) & 1) {
            dpari_text_print(text, "%s%s", (recompute & ((4 << i) - 1)) > 0 ? "+" : "",
                             dpari_recompute_word[4 + i]);
        }
    }
}

/* Reads words joined by '+': at most one of the four values, and bits. Returns -1 if a word does
 * not exist or the words cannot be combined. */
static int32_t dpari_read_recompute(const char *s, size_t n)
{
    int32_t bits = 0, i;
    while (n > 0) {
        const size_t k = dpari_until(s, n, '+');
        for (i = 0; i < 7 && !dpari_spells(s, k, dpari_recompute_word[i]); i++) {
        }
        if (i == 7 || (i < 4 && (bits & 3) > 0)) {
            return -1;
        }
        bits |= i < 4 ? i : 1 << (i - 2);
        s += k < n ? k + 1 : k;
        n -= k < n ? k + 1 : k;
    }
    return (bits & 3) > DPAR_RECOMPUTE_SELECTIVE && bits > 3 ? -1 : bits;
}

DPARI_INTERNAL const char *dpari_cp_name(int32_t cp_kind)
{
    static const char name[DPAR_CP_KIND_COUNT][12] = {"ring", "ulysses", "gather"};
    return cp_kind >= 0 && cp_kind < DPAR_CP_KIND_COUNT ? name[cp_kind] : "?";
}

DPAR_API const char *dpar_strategy_rule_name(int32_t rule)
{
    static const char name[DPAR_STRATEGY_RULE_COUNT][16] = {
        "none", "degree", "ranks", "tp-heads", "tp-across-nodes", "pp-layers", "schedule", "cp",
        "ep",   "zero",   "batch", "tiles",    "option",          "offload",   "memory"};
    return rule >= 0 && rule < DPAR_STRATEGY_RULE_COUNT ? name[rule] : "?";
}

/* ---- recipes --------------------------------------------------------------------------------- */

/* The recipes. The fields are those of dpar_recipe. Sources: the ZeRO paper, Megatron's distributed
 * optimizer, DeepSpeed's estimator, FSDP2's mixed precision.
 *
 * casts: a 16-bit number is read, and written in 8 bits together with a transposed copy, which are
 * 4 bytes. FSDP scales by the whole tensor of this step and therefore reads the number twice: 6
 * bytes. */
static const struct {
    char name[16];
    float weight, gradient, master, moments, gathered, reduced;
    int8_t compute, casts;
} dpari_recipe[] = {{"megatron", 2, 4, 4, 8, 2, 4, DPAR_BF16, 0},
                    {"bf16", 2, 4, 4, 8, 2, 4, DPAR_BF16, 0},
                    {"zero", 2, 2, 4, 8, 2, 2, DPAR_BF16, 0},
                    {"fp16", 2, 2, 4, 8, 2, 2, DPAR_BF16, 0},
                    {"deepspeed", 2, 6, 4, 8, 2, 2, DPAR_BF16, 0},
                    {"fp32", 4, 4, 0, 8, 4, 4, DPAR_TF32, 0},
                    {"pure-bf16", 2, 2, 0, 4, 2, 2, DPAR_BF16, 0},
                    {"adam8", 2, 4, 4, 2, 2, 4, DPAR_BF16, 0},
                    {"no-master", 2, 2, 0, 8, 2, 2, DPAR_BF16, 0},
                    {"fsdp", 4, 4, 0, 8, 2, 2, DPAR_BF16, 0},
                    {"fp8", 3, 2, 4, 8, 2, 2, DPAR_F8, 4},
                    {"bf16-moments", 2, 4, 4, 4, 2, 4, DPAR_BF16, 0},
                    {"fsdp-fp8", 4, 4, 0, 8, 2, 2, DPAR_F8, 6},
                    {"fsdp-fp8-row", 4, 4, 0, 8, 2, 2, DPAR_BF16, 6},
                    {"zero++", 2, 2, 4, 8, 1, 0.5f, DPAR_BF16, 0},
                    {"fp8-grad32", 3, 4, 4, 8, 2, 4, DPAR_F8, 4},
                    {"bf16-grad16", 2, 2, 4, 8, 2, 2, DPAR_BF16, 0},
                    /* two copies of each weight, by rows and by columns, with a scale for each 32
                     * (mxfp8) or 16 of them (nvfp4); nvfp4 also keeps a 16-bit weight */
                    {"mxfp8", 2.0625f, 2, 4, 8, 1, 2, DPAR_F8, 4},
                    {"nvfp4", 3.125f, 2, 4, 8, 2, 2, DPAR_F4, 4}};

enum { DPARI_RECIPES = (int)(sizeof(dpari_recipe) / sizeof(dpari_recipe[0])) };

DPAR_API const char *dpar_recipe_name(int32_t index)
{
    return index >= 0 && index < DPARI_RECIPES ? dpari_recipe[index].name : NULL;
}

DPAR_API DPARI_COLD dpar_status dpar_recipe_find(dpar_recipe *recipe, const char *name,
                                                 dpar_why *why)
{
    int32_t i;
    for (i = 0; i < DPARI_RECIPES; i++) {
        if (dpari_same(name, dpari_recipe[i].name)) {
            dpari_copy_text(recipe->name, sizeof(recipe->name), name, sizeof(recipe->name));
            recipe->weight = (double)dpari_recipe[i].weight;
            recipe->gradient = (double)dpari_recipe[i].gradient;
            recipe->master = (double)dpari_recipe[i].master;
            recipe->moments = (double)dpari_recipe[i].moments;
            recipe->gathered = (double)dpari_recipe[i].gathered;
            recipe->reduced = (double)dpari_recipe[i].reduced;
            recipe->compute = dpari_recipe[i].compute;
            recipe->casts = dpari_recipe[i].casts;
            recipe->bucket = dpari_same(name, "deepspeed") ? 5e8 : 0.0;
            return DPAR_OK;
        }
    }
    return dpari_say(DPAR_E_UNKNOWN, why,
                     "unknown precision '%s'; one of megatron (= bf16), zero (= fp16), "
                     "deepspeed, fp32, pure-bf16, adam8, no-master, fsdp, fp8, fsdp-fp8, "
                     "fsdp-fp8-row, bf16-moments, zero++, fp8-grad32, bf16-grad16, mxfp8, nvfp4",
                     name);
}

/* ---- the text form --------------------------------------------------------------------------- */

DPAR_API void dpar_strategy_init(dpar_strategy *strategy)
{
    dpari_zero(strategy, sizeof(*strategy));
    strategy->tp = strategy->cp = strategy->dp = strategy->pp = strategy->vp = strategy->ep =
        strategy->etp = 1;
    strategy->micro_batch = strategy->micro_batches = 1;
    strategy->schedule = DPAR_SCHEDULE_1F1B;
    strategy->overlap = DPAR_OVERLAP_DEFAULT;
    strategy->tiles[0] = strategy->tiles[1] = strategy->tiles[2] = 1;
}

/* What fields of a strategy take in addition to DPARI_FIELD_*. */
enum {
    DPARI_STRATEGY_CP_KIND = DPARI_FIELD_OWN,
    DPARI_STRATEGY_SCHEDULE,
    DPARI_STRATEGY_RECOMPUTE,
    DPARI_STRATEGY_OFFLOAD,
    DPARI_STRATEGY_OVERLAP,
    DPARI_STRATEGY_TILES
};

#define DPARI_STRATEGY_PLACE(field) DPARI_PLACE(dpar_strategy, field)
/* The fields in the order of DPAR_STRATEGY_FIELD_*, then short names. */
static const dpari_field dpari_strategy_field[] = {
    {"tp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(tp)},
    {"sp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(sp)},
    {"cp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(cp)},
    {"cp_kind", DPARI_STRATEGY_CP_KIND, DPARI_STRATEGY_PLACE(cp_kind)},
    {"dp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(dp)},
    {"shard", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(shard)},
    {"zero", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(zero)},
    {"pp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(pp)},
    {"vp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(vp)},
    {"schedule", DPARI_STRATEGY_SCHEDULE, DPARI_STRATEGY_PLACE(schedule)},
    {"ep", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(ep)},
    {"etp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(etp)},
    {"micro_batch", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(micro_batch)},
    {"micro_batches", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(micro_batches)},
    {"recompute", DPARI_STRATEGY_RECOMPUTE, DPARI_STRATEGY_PLACE(recompute)},
    {"recompute_layers", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(recompute_layers)},
    {"offload", DPARI_STRATEGY_OFFLOAD, DPARI_STRATEGY_PLACE(offload)},
    {"overlap", DPARI_STRATEGY_OVERLAP, DPARI_STRATEGY_PLACE(overlap)},
    {"tiles", DPARI_STRATEGY_TILES, DPARI_STRATEGY_PLACE(tiles)},
    {"mbs", DPARI_FIELD_ALIAS, DPAR_STRATEGY_FIELD_MICRO_BATCH},
    {"m", DPARI_FIELD_ALIAS, DPAR_STRATEGY_FIELD_MICRO_BATCHES}};

DPARI_INTERNAL int32_t *dpari_strategy_at(dpar_strategy *strategy, int32_t field)
{
    return (int32_t *)(void *)((char *)strategy + dpari_strategy_field[field].place);
}

/* The names of the bits of overlap and of offload. */
static const char dpari_bit_name[2][6][12] = {
    {"dp", "tp", "pp", "default", "ep", "shared"},
    {"optimizer", "weights", "activations", "nvme", "", ""}};

/* Returns the bits of names joined by '+', as in "optimizer+activations", or -1 for an unknown
 * name. */
static int32_t dpari_read_bits(const char *s, size_t n, int32_t offload)
{
    int32_t bits = 0, i;
    size_t at = 0;
    while (at <= n) {
        const size_t k = dpari_until(s + at, n - at, '+');
        for (i = 0; i < 6 && !dpari_spells(s + at, k, dpari_bit_name[offload][i]); i++) {
        }
        if (k == 0 || (i == 6 && !dpari_spells(s + at, k, "none"))) {
            return -1;
        }
        bits |= i < 6 ? 1 << i : 0;
        at += k + 1;
    }
    return offload && (bits & DPAR_OFFLOAD_NVME) ? bits | DPAR_OFFLOAD_OPTIMIZER : bits;
}

/* Reads tiles from "2x4". */
static dpar_status dpari_read_tiles(const dpari_setting *setting, int32_t *tiles, dpar_why *why)
{
    int64_t extent[3] = {1, 1, 1};
    int32_t i;
    if (dpari_extents(setting->value, setting->value_length, extent, 3) == 0) {
        return dpari_setting_bad(setting, why, "1 to 3 whole numbers joined by 'x', such as 2x4,");
    }
    for (i = 0; i < 3; i++) {
        tiles[i] = (int32_t)extent[i];
    }
    return DPAR_OK;
}

/* Reads a setting that is not a plain number. */
static DPARI_COLD dpar_status dpari_strategy_own(void *object, const dpari_setting *setting,
                                                 dpar_why *why)
{
    dpar_strategy *strategy = (dpar_strategy *)object;
    const char *expected = "key=value", *value = setting->value;
    const size_t n = setting->value_length;
    int32_t bits = -1, *place = &strategy->overlap;
    switch (setting->field) {
    case DPAR_STRATEGY_FIELD_CP_KIND:
        return dpari_setting_choice(setting, dpari_cp_name, 0, DPAR_CP_KIND_COUNT,
                                    &strategy->cp_kind, why);
    case DPAR_STRATEGY_FIELD_SCHEDULE:
        return dpari_setting_choice(setting, dpar_schedule_name, 1, DPAR_SCHEDULE_PRICED_END,
                                    &strategy->schedule, why);
    case DPAR_STRATEGY_FIELD_TILES: return dpari_read_tiles(setting, strategy->tiles, why);
    case DPAR_STRATEGY_FIELD_RECOMPUTE:
        expected = "none, selective, full or alternate, or some of selective, norm, activation and "
                   "experts joined by '+',";
        place = &strategy->recompute;
        bits = n > 0 ? dpari_read_recompute(value, n) : -1;
        break;
    case DPAR_STRATEGY_FIELD_OFFLOAD:
        expected = "none, or some of optimizer, weights, activations and nvme joined by '+',";
        place = &strategy->offload;
        bits = dpari_read_bits(value, n, 1);
        break;
    case DPAR_STRATEGY_FIELD_OVERLAP:
        expected = "default, none, or some of dp, tp, pp, ep and shared joined by '+',";
        bits = dpari_read_bits(value, n, 0);
        break;
    default: break;
    }
    if (bits < 0) {
        return dpari_setting_bad(setting, why, expected);
    }
    *place = bits;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_strategy_read(dpar_strategy *strategy, const char *text,
                                                   size_t bytes, uint32_t *named, dpar_why *why)
{
    const uint64_t vp = (uint64_t)1 << DPAR_STRATEGY_FIELD_VP;
    const uint64_t schedule = (uint64_t)1 << DPAR_STRATEGY_FIELD_SCHEDULE;
    dpar_strategy s = *strategy;
    dpari_fields fields;
    uint64_t seen[2] = {0, 0};
    dpar_status st = DPAR_OK;
    fields.list = dpari_strategy_field;
    fields.count = (int32_t)(sizeof(dpari_strategy_field) / sizeof(dpari_strategy_field[0]));
    fields.of = "a strategy";
    fields.more = "; known: tp sp cp cp_kind dp shard zero pp vp schedule ep etp mbs m recompute "
                  "recompute_layers offload overlap tiles";
    fields.own = dpari_strategy_own;
    if (bytes > 0) {
        st = dpari_settings_read(&fields, text, bytes, &s, seen, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    /* vp > 1 implies the interleaved schedule unless another one is named */
    if ((seen[0] & vp) && s.vp > 1 && !(seen[0] & schedule) && s.schedule == DPAR_SCHEDULE_1F1B) {
        s.schedule = DPAR_SCHEDULE_INTERLEAVED;
    }
    *strategy = s;
    if (named != NULL) {
        *named = (uint32_t)seen[0];
    }
    return DPAR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

DPARI_STATIC_NOINLINE void dpari_write_pair(dpar_text *text, const char *name, int64_t v)
{
    dpari_text_print(text, ",%s=%ld", name, v);
}

DPARI_INTERNAL void dpari_write_bits(dpar_text *text, const char *name, int32_t bits,
                                     int32_t offload)
{
    int32_t i, n = 0;
    dpar_text_put(text, name);
    for (i = 0; i < 6; i++) {
        if (bits >> i & 1) {
            dpari_text_print(text, "%s%s", n > 0 ? "+" : "", dpari_bit_name[offload][i]);
            n++;
        }
    }
    dpar_text_put(text, n == 0 ? "none" : "");
}

DPARI_INTERNAL void dpari_write_tiles(dpar_text *text, const int32_t *tiles)
{
    dpari_text_print(text, "%dx%d", tiles[0], tiles[1]);
    if (tiles[2] > 1) {
        dpari_text_print(text, "x%d", tiles[2]);
    }
}

DPAR_API DPARI_COLD void dpar_strategy_write(const dpar_strategy *strategy, dpar_text *text)
{
    dpari_text_print(text, "dp=%d", strategy->dp);
    if (strategy->shard > 0 && strategy->shard < strategy->dp) {
        dpari_write_pair(text, "shard", strategy->shard);
    }
    dpari_write_pair(text, "zero", strategy->zero);
    dpari_write_pair(text, "tp", strategy->tp);
    if (strategy->tp > 1) {
        dpari_write_pair(text, "sp", strategy->sp);
    }
    if (strategy->cp > 1) {
        dpari_write_pair(text, "cp", strategy->cp);
        dpari_text_print(text, ",cp_kind=%s", dpari_cp_name(strategy->cp_kind));
    }
    dpari_write_pair(text, "pp", strategy->pp);
    if (strategy->pp > 1) {
        dpari_write_pair(text, "vp", strategy->vp);
        dpari_text_print(text, ",schedule=%s", dpar_schedule_name(strategy->schedule));
    }
    if (strategy->ep * strategy->etp > 1) {
        dpari_write_pair(text, "ep", strategy->ep);
        dpari_write_pair(text, "etp", strategy->etp);
    }
    if (dpari_tiles(strategy) > 1) {
        dpar_text_put(text, ",tiles=");
        dpari_write_tiles(text, strategy->tiles);
    }
    dpari_write_pair(text, "mbs", strategy->micro_batch);
    dpari_write_pair(text, "m", strategy->micro_batches);
    if (strategy->recompute != DPAR_RECOMPUTE_NONE) {
        dpar_text_put(text, ",recompute=");
        dpari_write_recompute(text, strategy->recompute);
    }
    if (strategy->recompute_layers > 0) {
        dpari_write_pair(text, "recompute_layers", strategy->recompute_layers);
    }
    if (strategy->offload != 0) {
        dpari_write_bits(text, ",offload=", strategy->offload, 1);
    }
    if (!(strategy->overlap & DPAR_OVERLAP_DEFAULT)) {
        dpari_write_bits(text, ",overlap=", strategy->overlap, 0);
    }
}

/* ---- rules ----------------------------------------------------------------------------------- */

DPAR_API int32_t dpar_strategy_ranks(const dpar_strategy *strategy)
{
    int64_t n = 1;
    int32_t i, ok = strategy->tp > 0 && strategy->cp > 0 && strategy->dp > 0 && strategy->pp > 0;
    ok = ok && dpari_mul(n, strategy->tp, &n) && dpari_mul(n, strategy->cp, &n) && n <= INT32_MAX;
    ok = ok && dpari_mul(n, strategy->dp, &n) && n <= INT32_MAX && dpari_mul(n, strategy->pp, &n);
    for (i = 0; i < 3; i++) {
        ok = ok && n <= INT32_MAX && strategy->tiles[i] > 0 && dpari_mul(n, strategy->tiles[i], &n);
    }
    return ok && n <= INT32_MAX ? (int32_t)n : 0;
}

/* Sets the rule that a strategy breaks and writes the message. Returns DPAR_E_ARG for a field that
 * is out of its range, otherwise DPAR_E_DIVIDE. */
static DPARI_PRINTF(4, 5) dpar_status
    dpari_refuse(int32_t *rule, int32_t which, dpar_why *why, const char *form, ...)
{
    dpar_status status = which == DPAR_STRATEGY_RULE_DEGREE ? DPAR_E_ARG : DPAR_E_DIVIDE;
    va_list list;
    if (rule != NULL) {
        *rule = which;
    }
    va_start(list, form);
    status = dpari_say_list(status, why, form, &list);
    va_end(list);
    return status;
}

/* Checks that every field is in its range. */
static DPARI_COLD dpar_status dpari_check_degrees(const dpar_strategy *strategy, int32_t *rule,
                                                  dpar_why *why)
{
    /* `most` is 0 if there is no limit */
    static const struct {
        int8_t field, least, most;
    } range[] = {{DPAR_STRATEGY_FIELD_TP, 1, 0},
                 {DPAR_STRATEGY_FIELD_CP, 1, 0},
                 {DPAR_STRATEGY_FIELD_DP, 1, 0},
                 {DPAR_STRATEGY_FIELD_PP, 1, 0},
                 {DPAR_STRATEGY_FIELD_VP, 1, 0},
                 {DPAR_STRATEGY_FIELD_EP, 1, 0},
                 {DPAR_STRATEGY_FIELD_ETP, 1, 0},
                 {DPAR_STRATEGY_FIELD_MICRO_BATCH, 1, 0},
                 {DPAR_STRATEGY_FIELD_MICRO_BATCHES, 1, 0},
                 {DPAR_STRATEGY_FIELD_RECOMPUTE_LAYERS, 0, 0},
                 {DPAR_STRATEGY_FIELD_SHARD, 0, 0},
                 {DPAR_STRATEGY_FIELD_ZERO, 0, 3},
                 {DPAR_STRATEGY_FIELD_SP, 0, 1}};
    dpar_strategy given = *strategy;
    size_t i;
    for (i = 0; i < sizeof(range) / sizeof(range[0]); i++) {
        const char *name = dpari_strategy_field[range[i].field].name;
        const int32_t v = *dpari_strategy_at(&given, range[i].field);
        const int32_t least = range[i].least, most = range[i].most;
        if (most > 0 && (v < least || v > most)) {
            return dpari_refuse(rule, DPAR_STRATEGY_RULE_DEGREE, why, "%s=%d must be %d to %d",
                                name, v, least, most);
        }
        if (v < least) {
            return dpari_refuse(rule, DPAR_STRATEGY_RULE_DEGREE, why, "%s=%d must be at least %d",
                                name, v, least);
        }
    }
    if (strategy->schedule == 0) {
        return dpari_refuse(
            rule, DPAR_STRATEGY_RULE_DEGREE, why,
            "schedule=0: set a schedule, such as DPAR_SCHEDULE_1F1B (dpar_strategy_init does)");
    }
    if (strategy->recompute < 0 || strategy->recompute > 31 ||
        (strategy->recompute > 3 && (strategy->recompute & 3) > 1) || strategy->schedule < 1 ||
        strategy->schedule >= DPAR_SCHEDULE_PRICED_END || strategy->cp_kind < 0 ||
        strategy->cp_kind >= DPAR_CP_KIND_COUNT) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_DEGREE, why,
                            "recompute=%d, schedule=%d or cp_kind=%d is not one that is priced",
                            strategy->recompute, strategy->schedule, strategy->cp_kind);
    }
    return DPAR_OK;
}

DPARI_INTERNAL double dpari_zero_ranks(const dpar_strategy *strategy)
{
    return (double)(strategy->shard > 0 ? strategy->shard : strategy->dp) * strategy->cp *
           (double)dpari_tiles(strategy);
}

DPARI_INTERNAL int dpari_sequence_cuts(const dpar_workload *work, const dpar_strategy *strategy)
{
    int64_t parts = (int64_t)strategy->tp * strategy->cp;
    return work->heads > 0 && parts > 0 && (int64_t)work->tokens % parts == 0;
}

/* Checks that tp divides heads and hidden size, and that sequence parallelism divides the tokens.
 * There may be fewer key-value heads than tp, because ranks can hold copies of them. */
static DPARI_COLD dpar_status dpari_check_tensor(const dpar_workload *work,
                                                 const dpar_strategy *strategy, int32_t *rule,
                                                 dpar_why *why)
{
    if (strategy->tp > 1 && work->heads > 0 && work->heads % strategy->tp != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_TP_HEADS, why,
                            "tp=%d does not divide %d attention heads", strategy->tp, work->heads);
    }
    if (strategy->tp > 1 && work->kv_heads > 0 && work->kv_heads % strategy->tp != 0 &&
        strategy->tp % work->kv_heads != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_TP_HEADS, why,
                            "tp=%d and %d key-value heads: neither divides the other", strategy->tp,
                            work->kv_heads);
    }
    if (strategy->tp > 1 && (work->hidden < 1 || work->hidden % strategy->tp != 0)) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_TP_HEADS, why,
                            "tp=%d does not divide hidden=%d", strategy->tp, work->hidden);
    }
    if (strategy->sp && (strategy->tp == 1 || work->heads == 0)) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_OPTION, why,
                            "sequence parallelism (sp=1) needs tp > 1 and a model with attention "
                            "(tp=%d)",
                            strategy->tp);
    }
    if (strategy->sp && !dpari_sequence_cuts(work, strategy)) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_OPTION, why,
                            "sp=1: tp=%d x cp=%d does not divide %ld tokens", strategy->tp,
                            strategy->cp, (int64_t)work->tokens);
    }
    return DPAR_OK;
}

/* Checks recomputation, and that the layers suffice for the stages and the schedule allows pp, vp
 * and the micro-batches. Embedding and loss may count as two layers. */
static DPARI_COLD dpar_status dpari_check_pipeline(const dpar_workload *work,
                                                   const dpar_strategy *strategy, int32_t *rule,
                                                   dpar_why *why)
{
    int64_t chunks = (int64_t)strategy->pp * strategy->vp;
    int looped = dpari_looped(strategy->schedule), folded = dpari_v_shaped(strategy->schedule);
    if (strategy->recompute != DPAR_RECOMPUTE_NONE && !work->trains) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_OPTION, why,
                            "recompute=%d must be 0 (none), because the job has no backward",
                            strategy->recompute);
    }
    if (strategy->recompute_layers > 0 &&
        (strategy->recompute != DPAR_RECOMPUTE_FULL || strategy->recompute_layers > work->blocks)) {
        return dpari_refuse(
            rule, DPAR_STRATEGY_RULE_OPTION, why,
            "recompute_layers=%d needs recompute=full and must be at most %d layers",
            strategy->recompute_layers, work->blocks);
    }
    if (strategy->pp > 1 && chunks > work->blocks && (work->blocks + INT64_C(2)) % chunks != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_PP_LAYERS, why,
                            "pp=%d x vp=%d needs at least as many layers, the model has %d",
                            strategy->pp, strategy->vp, work->blocks);
    }
    if (strategy->vp > 1 && (strategy->pp == 1 || !(looped || (folded && strategy->vp == 2)))) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_SCHEDULE, why,
                            "vp=%d needs pp > 1 (pp=%d) and an interleaved, breadth-first or, with "
                            "vp=2, V schedule",
                            strategy->vp, strategy->pp);
    }
    if (strategy->pp > 1 && folded && strategy->vp != 2) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_SCHEDULE, why,
                            "a V schedule has two chunks per rank: vp=2, not %d", strategy->vp);
    }
    if (strategy->schedule == DPAR_SCHEDULE_INTERLEAVED && strategy->pp > 1 &&
        (strategy->vp < 2 ||
         strategy->micro_batches % dpari_most(1, strategy->micro_batches / strategy->pp) != 0)) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_SCHEDULE, why,
                            "interleaving needs vp >= 2 (vp=%d) and m=%d micro-batches in equal "
                            "rounds of at least pp=%d",
                            strategy->vp, strategy->micro_batches, strategy->pp);
    }
    if (strategy->pp > 1 &&
        (strategy->schedule == DPAR_SCHEDULE_DUALPIPE ||
         strategy->schedule == DPAR_SCHEDULE_DUALPIPEV) &&
        (strategy->micro_batches < 2 * strategy->pp ||
         (strategy->schedule == DPAR_SCHEDULE_DUALPIPE &&
          (strategy->pp % 2 != 0 || strategy->micro_batches % 2 != 0)))) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_SCHEDULE, why,
                            "DualPipe needs m >= 2 pp, and unless it is DualPipeV an even m and "
                            "pp: m=%d, pp=%d",
                            strategy->micro_batches, strategy->pp);
    }
    return DPAR_OK;
}

/* Checks that cp divides the tokens, and with Ulysses the heads. In a ring each rank has two pieces
 * of the sequence, so that every rank has the same work in causal attention. */
static DPARI_COLD dpar_status dpari_check_context(const dpar_workload *work,
                                                  const dpar_strategy *strategy, int32_t *rule,
                                                  dpar_why *why)
{
    int64_t tokens = (int64_t)work->tokens;
    if (strategy->cp > 1 && work->heads == 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_CP, why, "cp=%d: the model has no sequence",
                            strategy->cp);
    }
    if (strategy->cp > 1 && strategy->cp_kind == DPAR_CP_RING &&
        tokens % (2 * (int64_t)strategy->cp) != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_CP, why,
                            "ring attention: 2 cp = %ld does not divide %ld tokens",
                            2 * (int64_t)strategy->cp, tokens);
    }
    if (strategy->cp > 1 && tokens % strategy->cp != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_CP, why, "cp=%d does not divide %ld tokens",
                            strategy->cp, tokens);
    }
    if (strategy->cp > 1 && strategy->cp_kind == DPAR_CP_ULYSSES &&
        (work->heads / strategy->tp) % strategy->cp != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_CP, why,
                            "Ulysses: cp=%d does not divide the %d heads that tp=%d leaves",
                            strategy->cp, work->heads / strategy->tp, strategy->tp);
    }
    return DPAR_OK;
}

/* Checks that ep divides the experts, and ep x etp the ranks of a stage. */
static DPARI_COLD dpar_status dpari_check_experts(const dpar_workload *work,
                                                  const dpar_strategy *strategy, int32_t *rule,
                                                  dpar_why *why)
{
    int64_t ranks = (int64_t)strategy->tp * strategy->cp * strategy->dp;
    if ((strategy->ep > 1 || strategy->etp > 1) && work->experts == 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_EP, why,
                            "ep=%d, etp=%d: the model has no experts", strategy->ep, strategy->etp);
    }
    if (strategy->ep > 1 && work->experts % strategy->ep != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_EP, why, "ep=%d does not divide %d experts",
                            strategy->ep, work->experts);
    }
    if ((strategy->ep > 1 || strategy->etp > 1) &&
        ranks % ((int64_t)strategy->ep * strategy->etp) != 0) {
        return dpari_refuse(
            rule, DPAR_STRATEGY_RULE_EP, why,
            "ep x etp = %ld does not divide the %ld ranks of a stage (tp x cp x dp)",
            (int64_t)strategy->ep * strategy->etp, ranks);
    }
    if (work->experts > 0 && strategy->tp > 1 &&
        strategy->sp == 0) { /* without SP, every TP rank would route every token */
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_EP, why,
                            "tp=%d with %d experts needs sequence parallelism: sp=1", strategy->tp,
                            work->experts);
    }
    return DPAR_OK;
}

/* Checks that the grid has the axes that are divided, and that in every layer a tile is at least as
 * deep as a halo, so that halos reach only one tile. */
static DPARI_COLD dpar_status dpari_check_tiles(const dpar_workload *work,
                                                const dpar_strategy *strategy, int32_t *rule,
                                                dpar_why *why)
{
    int32_t i, k;
    if (strategy->tiles[0] < 1 || strategy->tiles[1] < 1 || strategy->tiles[2] < 1) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_DEGREE, why,
                            "tiles must be at least 1: %dx%dx%d", strategy->tiles[0],
                            strategy->tiles[1], strategy->tiles[2]);
    }
    for (i = 0; i < 3; i++) {
        if (strategy->tiles[i] > 1 && i >= work->dims) {
            return dpari_refuse(rule, DPAR_STRATEGY_RULE_TILES, why,
                                "%d tiles along axis %d, but the model's grid has %d axes",
                                strategy->tiles[i], i, work->dims);
        }
        for (k = 0; strategy->tiles[i] > 1 && k < work->layers; k++) {
            int64_t cells = work->extent[i] / work->layer[k].shrink / strategy->tiles[i];
            if (work->layer[k].exchanges > 0 && cells < dpari_most(2, work->layer[k].reach)) {
                return dpari_refuse(
                    rule, DPAR_STRATEGY_RULE_TILES, why,
                    "%d tiles along an axis of %ld cells leave %ld cells each in some layer: a "
                    "tile needs 2, and all of its neighbour's halo",
                    strategy->tiles[i], work->extent[i], cells);
            }
        }
    }
    return DPAR_OK;
}

/* Checks shards, the global batch and offloading. */
static DPARI_COLD dpar_status dpari_check_data(const dpar_job *job, const dpar_strategy *strategy,
                                               int64_t global_batch, int32_t *rule, dpar_why *why)
{
    int64_t batch = 0;
    if (strategy->shard > 0 && strategy->dp % strategy->shard != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_ZERO, why, "shard=%d does not divide dp=%d",
                            strategy->shard, strategy->dp);
    }
    if (!dpari_mul((int64_t)strategy->dp * strategy->micro_batch, strategy->micro_batches,
                   &batch)) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_BATCH, why,
                            "dp=%d x mbs=%d x m=%d is too large", strategy->dp,
                            strategy->micro_batch, strategy->micro_batches);
    }
    if (global_batch > 0 && batch != global_batch) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_BATCH, why,
                            "dp x mbs x m = %ld samples per step, but the global batch is %ld",
                            batch, global_batch);
    }
    if (strategy->offload != 0 && !(job->cluster->host_bytes > 0.0)) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_OFFLOAD, why,
                            "offload=%d needs the host's memory: add host=GB to the machine",
                            strategy->offload);
    }
    if (strategy->offload < 0 || strategy->offload > 15 ||
        ((strategy->offload & DPAR_OFFLOAD_NVME) &&
         (!(job->cluster->nvme_Bps > 0.0) || !(strategy->offload & DPAR_OFFLOAD_OPTIMIZER)))) {
        return dpari_refuse(
            rule, DPAR_STRATEGY_RULE_OFFLOAD, why,
            "offload=%d must be 0 to 15; NVMe (8) needs the optimizer (1) and nvme=GB/s "
            "of the machine",
            strategy->offload);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_strategy_check(const dpar_job *job,
                                                           const dpar_strategy *strategy,
                                                           int64_t global_batch, int32_t *rule,
                                                           dpar_why *why)
{
    const dpar_workload *work = job->work;
    int32_t ranks = dpar_strategy_ranks(strategy), gpus = dpari_cluster_gpus(job->cluster);
    dpar_status st = dpari_check_degrees(strategy, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_check_tiles(work, strategy, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (ranks != gpus && ranks == 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_RANKS, why,
                            "tp x cp x dp x pp x tiles are more than 2^31 - 1 ranks, the cluster "
                            "has %d GPUs",
                            gpus);
    }
    if (ranks != gpus) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_RANKS, why,
                            "tp x cp x dp x pp x tiles = %d ranks, the cluster has %d GPUs", ranks,
                            gpus);
    }
    st = dpari_check_tensor(work, strategy, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_check_pipeline(work, strategy, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_check_context(work, strategy, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_check_experts(work, strategy, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_check_data(job, strategy, global_batch, rule, why);
    if (st == DPAR_OK && rule != NULL) {
        *rule = DPAR_STRATEGY_RULE_NONE;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_strategy_complete(const dpar_job *job, dpar_strategy *strategy,
                                                       uint32_t named, int64_t batch, dpar_why *why)
{
    const int32_t gpus = dpari_cluster_gpus(job->cluster);
    dpar_strategy one = *strategy;
    int32_t model;
    one.dp = 1;
    model = dpar_strategy_ranks(&one); /* 0 if a degree is below 1 or they exceed 2^31 - 1 */
    if ((named >> DPAR_STRATEGY_FIELD_DP & 1u) == 0 && model > 0) {
        if (gpus % model != 0) {
            return dpari_say(DPAR_E_DIVIDE, why,
                             "tp x cp x pp x tiles = %d ranks do not divide the cluster's %d GPUs",
                             model, gpus);
        }
        strategy->dp = gpus / model;
    }
    if ((named >> DPAR_STRATEGY_FIELD_MICRO_BATCHES & 1u) == 0 && batch > 0 && strategy->dp > 0 &&
        strategy->micro_batch > 0) {
        const int64_t m = batch / ((int64_t)strategy->dp * strategy->micro_batch);
        strategy->micro_batches = m > 0 && m < INT32_MAX ? (int32_t)m : 1;
    }
    return DPAR_OK;
}
