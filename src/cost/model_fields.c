/* SPDX-License-Identifier: MIT-0 */
/* Reads the fields of a model from text. Programs reach it by dpar_model_read; the tables of
 * presets and of the types of config.json have the same form. */
#include "model_fields.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "cost_private.h"
#include "fields.h"

/* What fields of a model take in addition to DPARI_FIELD_*. */
enum {
    DPARI_MODEL_SEQ = DPARI_FIELD_OWN,
    DPARI_MODEL_CAPACITY,
    DPARI_MODEL_IMAGE,
    DPARI_MODEL_ATTENTION,
    DPARI_MODEL_STACK,
    DPARI_MODEL_PATTERN,
    DPARI_MODEL_LOSS
};

/* All fields: the integers in the order of DPARI_M_*, then the others. */
#define DPARI_MODEL_ROW(key, field, kind)                                                          \
    {                                                                                              \
#field, DPARI_FIELD_##kind, DPARI_PLACE(dpar_model, field)                                 \
    }
static const dpari_field dpari_model_list[] = {
    DPARI_MODEL_INTEGERS(DPARI_MODEL_ROW),
    {"flops_per_cell", DPARI_FIELD_REAL, DPARI_PLACE(dpar_model, flops_per_cell)},
    {"bytes_per_cell", DPARI_FIELD_REAL, DPARI_PLACE(dpar_model, bytes_per_cell)},
    {"capacity", DPARI_MODEL_CAPACITY, 0},
    {"image", DPARI_MODEL_IMAGE, 0},
    {"attention", DPARI_MODEL_ATTENTION, 0},
    {"stack", DPARI_MODEL_STACK, 0},
    {"pattern", DPARI_MODEL_PATTERN, 0},
    {"loss", DPARI_MODEL_LOSS, 0}};

DPARI_INTERNAL int32_t *dpari_model_field(dpar_model *model, int32_t key)
{
    return (int32_t *)(void *)((char *)model + dpari_model_list[key].place);
}

static const char *dpari_family_name(int32_t family)
{
    static const char name[DPAR_MODEL_FAMILY_END][8] = {"?",  "gpt",    "llama", "vit", "dit",
                                                        "t5", "resnet", "unet",  "grid"};
    return name[family];
}

DPARI_INTERNAL int dpari_spells_one(char letter, const char *letters)
{
    while (*letters != 0 && *letters != letter) {
        letters++;
    }
    return *letters != 0;
}

/* Reads the tokens of a sample: 32k is 32768. */
static dpar_status dpari_model_seq(dpar_model *model, const dpari_setting *setting, dpar_why *why)
{
    const size_t n = setting->value_length;
    const int kilo = n > 1 && setting->value[n - 1] == 'k';
    int64_t v = 0;
    if (!dpari_whole(setting->value, n - (size_t)kilo, 1, INT32_MAX >> 10 * kilo, &v)) {
        return dpari_setting_bad(setting, why, "a whole number of 1 to 2147483647");
    }
    model->seq = (int32_t)(v << 10 * kilo);
    return DPAR_OK;
}

/* Reads the load of the fullest expert, in mean loads. */
static dpar_status dpari_model_capacity(dpar_model *model, const dpari_setting *setting,
                                        dpar_why *why)
{
    double v = 0.0;
    if (!dpari_reals(setting->value, setting->value_length, &v, 1) || v < 1.0) {
        return dpari_setting_bad(setting, why,
                                 "a number of at least 1, because the fullest expert has at least "
                                 "the mean load,");
    }
    model->capacity = v;
    return DPAR_OK;
}

/* Reads "224" or "720x1440". */
static dpar_status dpari_model_image(dpar_model *model, const dpari_setting *setting, dpar_why *why)
{
    int64_t side[2];
    int32_t sides = dpari_extents(setting->value, setting->value_length, side, 2);
    if (sides == 0) {
        return dpari_setting_bad(setting, why, "a side or HEIGHTxWIDTH, such as 224 or 720x1440,");
    }
    model->image[0] = (int32_t)side[0];
    model->image[1] = (int32_t)side[sides - 1];
    return DPAR_OK;
}

/* Reads letters as in dpar_model.pattern. */
static dpar_status dpari_model_pattern(dpar_model *model, const dpari_setting *setting,
                                       dpar_why *why)
{
    const size_t n = setting->value_length;
    size_t i;
    for (i = 0; i < n && dpari_spells_one(setting->value[i], "FWSBfwsbDE"); i++) {
    }
    if (i < n || n == 0 || n >= sizeof(model->pattern)) {
        return dpari_setting_bad(setting, why, "1 to 15 letters of F W S B f w s b D E");
    }
    dpari_copy_text(model->pattern, sizeof(model->pattern), setting->value, n);
    return DPAR_OK;
}

/* Reads the short form of the tables, such as "32/4096/32/8/14336/128256/8192": layers, hidden,
 * heads, kv_heads, ffn, vocab and seq. A 0 leaves the field as it is. */
static dpar_status dpari_model_row(dpar_model *model, const dpari_setting *setting, dpar_why *why)
{
    static const uint8_t key[7] = {DPARI_M_LAYERS, DPARI_M_HIDDEN, DPARI_M_HEADS, DPARI_M_KV_HEADS,
                                   DPARI_M_FFN,    DPARI_M_VOCAB,  DPARI_M_SEQ};
    const char *s = setting->text;
    const size_t n = setting->length;
    size_t at = 0;
    int32_t i;
    for (i = 0; i < 7 && at < n; i++) {
        const size_t length = dpari_until(s + at, n - at, '/');
        int64_t v = 0;
        if (!dpari_whole(s + at, length, 0, INT32_MAX, &v)) {
            break;
        }
        if (v > 0) {
            *dpari_model_field(model, key[i]) = (int32_t)v;
        }
        at += length + 1;
    }
    if (at < n) {
        return dpari_setting_bad(setting, why,
                                 "key=value, or the numbers layers/hidden/heads/kv_heads/ffn/vocab/"
                                 "seq,");
    }
    return DPAR_OK;
}

/* Reads a setting that is not a plain number. */
static DPARI_COLD dpar_status dpari_model_own(void *object, const dpari_setting *setting,
                                              dpar_why *why)
{
    dpar_model *model = (dpar_model *)object;
    if (setting->field < 0) {
        return dpari_model_row(model, setting, why);
    }
    switch (dpari_model_list[setting->field].kind) {
    case DPARI_MODEL_SEQ: return dpari_model_seq(model, setting, why);
    case DPARI_MODEL_CAPACITY: return dpari_model_capacity(model, setting, why);
    case DPARI_MODEL_IMAGE: return dpari_model_image(model, setting, why);
    case DPARI_MODEL_ATTENTION:
        return dpari_setting_choice(setting, dpari_attention_name, 1, DPAR_MODEL_ATTENTION_END,
                                    &model->attention, why);
    case DPARI_MODEL_PATTERN: return dpari_model_pattern(model, setting, why);
    case DPARI_MODEL_LOSS:
        return dpari_setting_choice(setting, dpari_loss_name, 1, DPAR_MODEL_LOSS_END, &model->loss,
                                    why);
    default:
        return dpari_stack_read(model, setting->value, setting->value_length)
                   ? DPAR_OK
                   : dpari_one_of(setting->text, setting->length, dpari_stack_name, 1,
                                  DPAR_MODEL_STACK_END, why);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_model_settings(dpar_model *model, const char *s,
                                                           size_t n, dpar_why *why)
{
    dpari_fields fields;
    uint64_t seen[2];
    fields.list = dpari_model_list;
    fields.count = (int32_t)(sizeof(dpari_model_list) / sizeof(dpari_model_list[0]));
    fields.of = "a model";
    fields.more = "";
    fields.own = dpari_model_own;
    return dpari_settings_read(&fields, s, n, model, seen, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_model_family(dpar_model *model, const char *s,
                                                         size_t colon, size_t n, dpar_why *why)
{
    size_t at = colon + 1, length;
    for (model->family = 1; model->family < DPAR_MODEL_FAMILY_END; model->family++) {
        if (dpari_spells_any_case(s, colon, dpari_family_name(model->family))) {
            break;
        }
    }
    if (model->family == DPAR_MODEL_FAMILY_END) {
        return dpari_one_of(s, colon, dpari_family_name, 1, DPAR_MODEL_FAMILY_END, why);
    }
    if (model->family == DPAR_MODEL_FAMILY_GRID) {
        length = dpari_until(s + at, n - at, ',');
        model->extent[0] = model->extent[1] = model->extent[2] = 1;
        model->dims = dpari_extents(s + at, length, model->extent, 3);
        if (model->dims == 0) {
            return dpari_text_bad(
                s + at, length, why,
                "a grid of 1 to 3 extents of 1 to 2147483647, such as 1440x720x100,");
        }
        at += length + 1;
    }
    return at < n ? dpari_model_settings(model, s + at, n - at, why) : DPAR_OK;
}
