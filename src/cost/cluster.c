/* SPDX-License-Identifier: MIT-0 */
/* The reader of the text form of a machine, and the checks of a machine. Programs call
 * dpar_cluster_read; the planner calls dpari_cluster_check.
 *
 * A text is read twice: first for the number of nodes, the GPUs per node and the chip, then for all
 * other numbers. Otherwise a chip that is named late in the text would overwrite numbers that were
 * set before it. */
#include "cluster.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "cost_private.h"
#include "fields.h"

/* ---- fields ---------------------------------------------------------------------------------- */

/* What fields of a machine take in addition to DPARI_FIELD_*. */
enum {
    DPARI_MACHINE_NODES = DPARI_FIELD_OWN,
    DPARI_MACHINE_GPUS,
    DPARI_MACHINE_GPU,
    DPARI_MACHINE_NICS,
    DPARI_MACHINE_CURVE, /* the field is a dpar_curve */
    DPARI_MACHINE_SETTINGS,
    DPARI_MACHINE_NAME
};

#define DPARI_MACHINE_FIELD(name, kind, field)                                                     \
    {                                                                                              \
        name, kind, DPARI_PLACE(dpar_cluster, field)                                               \
    }
/* The fields of the text form. The calibration constants are last, in the order of DPAR_CAL_*. */
enum { DPARI_KEY_STREAM = 14, DPARI_KEY_CAL = 30 };
static const dpari_field dpari_machine_field[(int)DPARI_KEY_CAL + (int)DPAR_CAL_COUNT] = {
    {"nodes", DPARI_MACHINE_NODES, 0},
    {"gpus", DPARI_MACHINE_GPUS, 0},
    {"gpu", DPARI_MACHINE_GPU, 0},
    {"nic", DPARI_MACHINE_NICS, 0},
    DPARI_MACHINE_FIELD("nvlink", DPARI_FIELD_GIGA, link_Bps),
    DPARI_MACHINE_FIELD("switched", DPARI_FIELD_YES_NO, link_switched),
    DPARI_MACHINE_FIELD("nvls", DPARI_FIELD_YES_NO, link_reduces),
    DPARI_MACHINE_FIELD("sharp", DPARI_FIELD_YES_NO, net_reduces),
    DPARI_MACHINE_FIELD("taper", DPARI_FIELD_REAL, taper),
    DPARI_MACHINE_FIELD("memory", DPARI_FIELD_GIGA, gpu.memory_bytes),
    DPARI_MACHINE_FIELD("tflops", DPARI_FIELD_TERA, gpu.flops[DPAR_BF16]),
    DPARI_MACHINE_FIELD("pcie", DPARI_FIELD_GIGA, gpu.pcie_Bps),
    DPARI_MACHINE_FIELD("host", DPARI_FIELD_GIGA, host_bytes),
    DPARI_MACHINE_FIELD("nvme", DPARI_FIELD_GIGA, nvme_Bps),
    DPARI_MACHINE_FIELD("stream", DPARI_FIELD_GIGA, gpu.memory_Bps),
    DPARI_MACHINE_FIELD("tflops32", DPARI_FIELD_TERA, gpu.flops[DPAR_F32]),
    DPARI_MACHINE_FIELD("tflops64", DPARI_FIELD_TERA, gpu.flops[DPAR_F64]),
    DPARI_MACHINE_FIELD("halo_copy", DPARI_FIELD_GIGA, halo.copy_Bps),
    DPARI_MACHINE_FIELD("halo_run", DPARI_FIELD_NANO, halo.run_s),
    DPARI_MACHINE_FIELD("halo_peer", DPARI_FIELD_MICRO, halo.peer_s),
    DPARI_MACHINE_FIELD("halo_msg", DPARI_FIELD_MICRO, halo.message_s),
    DPARI_MACHINE_FIELD("halo_nic", DPARI_FIELD_GIGA, halo.nic_Bps),
    DPARI_MACHINE_FIELD("halo_cache", DPARI_FIELD_MEGA, halo.cache_bytes),
    DPARI_MACHINE_FIELD("halo_far", DPARI_FIELD_NANO, halo.far_s),
    DPARI_MACHINE_FIELD("link_reduce", DPARI_MACHINE_CURVE, curve[DPAR_CURVE_LINK]),
    DPARI_MACHINE_FIELD("link_send", DPARI_MACHINE_CURVE, curve[DPAR_CURVE_LINK_SEND]),
    DPARI_MACHINE_FIELD("net_reduce", DPARI_MACHINE_CURVE, curve[DPAR_CURVE_NET]),
    DPARI_MACHINE_FIELD("net_send", DPARI_MACHINE_CURVE, curve[DPAR_CURVE_NET_SEND]),
    {"settings", DPARI_MACHINE_SETTINGS, 0},
    {"machine", DPARI_MACHINE_NAME, 0},
    DPARI_MACHINE_FIELD("gemm", DPARI_FIELD_REAL, cal.value[DPAR_CAL_GEMM]),
    DPARI_MACHINE_FIELD("attention", DPARI_FIELD_REAL, cal.value[DPAR_CAL_ATTENTION]),
    DPARI_MACHINE_FIELD("hbm", DPARI_FIELD_REAL, cal.value[DPAR_CAL_HBM]),
    DPARI_MACHINE_FIELD("launch_us", DPARI_FIELD_MICRO, cal.value[DPAR_CAL_LAUNCH_S]),
    DPARI_MACHINE_FIELD("link_share", DPARI_FIELD_REAL, cal.value[DPAR_CAL_LINK_SHARE]),
    DPARI_MACHINE_FIELD("link_us", DPARI_FIELD_MICRO, cal.value[DPAR_CAL_LINK_S]),
    DPARI_MACHINE_FIELD("net_share", DPARI_FIELD_REAL, cal.value[DPAR_CAL_NET_SHARE]),
    DPARI_MACHINE_FIELD("net_us", DPARI_FIELD_MICRO, cal.value[DPAR_CAL_NET_S]),
    DPARI_MACHINE_FIELD("base_us", DPARI_FIELD_MICRO, cal.value[DPAR_CAL_BASE_S]),
    DPARI_MACHINE_FIELD("contention", DPARI_FIELD_REAL, cal.value[DPAR_CAL_CONTENTION]),
    DPARI_MACHINE_FIELD("skew", DPARI_FIELD_REAL, cal.value[DPAR_CAL_SKEW]),
    DPARI_MACHINE_FIELD("step_ms", DPARI_FIELD_MILLI, cal.value[DPAR_CAL_STEP_S]),
    DPARI_MACHINE_FIELD("hop_us", DPARI_FIELD_MICRO, cal.value[DPAR_CAL_HOP_S])};

DPAR_API DPARI_COLD const char *dpar_calibration_name(int32_t which)
{
    return which >= 0 && which < DPAR_CAL_COUNT ? dpari_machine_field[DPARI_KEY_CAL + which].name
                                                : NULL;
}

/* ---- settings -------------------------------------------------------------------------------- */

/* Sets nodes= or gpus=. A machine that gets a second node also gets NICs if it had none. If the
 * number of GPUs per node changes, the number of NICs changes in proportion. */
static DPARI_COLD dpar_status dpari_cluster_shape(dpar_cluster *cluster, int32_t kind,
                                                  const dpari_setting *setting, dpar_why *why)
{
    int64_t count = 0;
    if (!dpari_whole(setting->value, setting->value_length, 1, 10000000, &count)) {
        return dpari_setting_bad(setting, why, "a whole number of 1 to 10000000");
    }
    if (kind == DPARI_MACHINE_NODES) {
        cluster->nodes = (int32_t)count;
        if (count > 1 && cluster->nics == 0) {
            dpari_cluster_usual_nics(cluster);
        }
        return DPAR_OK;
    }
    if (cluster->nics > 0) {
        cluster->nics = (int32_t)dpari_most(1, cluster->nics * count / cluster->gpus_per_node);
    }
    cluster->gpus_per_node = (int32_t)count;
    return DPAR_OK;
}

/* Reads "8x50": eight NICs of 50 GB/s. */
static DPARI_COLD dpar_status dpari_cluster_nics(dpar_cluster *cluster,
                                                 const dpari_setting *setting, dpar_why *why)
{
    const size_t n = setting->value_length, x = dpari_until(setting->value, n, 'x');
    int64_t count = 0;
    double gb = 0.0;
    if (x == n || !dpari_whole(setting->value, x, 1, 1024, &count) ||
        !dpari_reals(setting->value + x + 1, n - x - 1, &gb, 1)) {
        return dpari_setting_bad(setting, why, "COUNTxGB/s, such as nic=8x50,");
    }
    cluster->nics = (int32_t)count;
    cluster->nic_Bps = gb * 1e9;
    return DPAR_OK;
}

/* Reads a point "2x65536x1.7" of a curve: two ranks, 65536 bytes, 1.7 us. */
static DPARI_COLD dpar_status dpari_cluster_point(dpar_curve *curve, const dpari_setting *setting,
                                                  dpar_why *why)
{
    double number[3] = {0.0, 0.0, 0.0}; /* ranks, bytes, microseconds */
    if (!dpari_reals(setting->value, setting->value_length, number, 3) || number[0] < 2.0 ||
        number[0] > 1e8 || curve->count == DPAR_CURVE_POINTS ||
        (curve->count > 0 && number[1] <= curve->bytes[curve->count - 1])) {
        return dpari_setting_bad(setting, why,
                                 "RANKSxBYTESxMICROSECONDS with 2 or more ranks, ascending bytes "
                                 "and at most 16 points");
    }
    curve->ranks = (int32_t)number[0];
    curve->bytes[curve->count] = number[1];
    curve->seconds[curve->count] = number[2] * 1e-6;
    curve->count++;
    return DPAR_OK;
}

/* Reads a setting that is not a plain number. */
static DPARI_COLD dpar_status dpari_cluster_own(void *object, const dpari_setting *setting,
                                                dpar_why *why)
{
    dpar_cluster *cluster = (dpar_cluster *)object;
    const dpari_field *field = &dpari_machine_field[setting->field];
    int64_t count = 0;
    switch (field->kind) {
    case DPARI_MACHINE_NODES:
    case DPARI_MACHINE_GPUS: return dpari_cluster_shape(cluster, field->kind, setting, why);
    case DPARI_MACHINE_GPU:
        return dpari_cluster_swap_gpu(cluster, setting->value, setting->value_length, why);
    case DPARI_MACHINE_NICS: return dpari_cluster_nics(cluster, setting, why);
    case DPARI_MACHINE_CURVE:
        return dpari_cluster_point((dpar_curve *)(void *)((char *)cluster + field->place), setting,
                                   why);
    case DPARI_MACHINE_SETTINGS:
        return dpari_whole(setting->value, setting->value_length, 1, 10000, &count)
                   ? DPAR_OK
                   : dpari_setting_bad(setting, why, "a whole number of 1 to 10000");
    default:
        return dpari_say(DPAR_E_PARSE, why, "'%.*s' must come before all settings",
                         (int32_t)setting->length, setting->text);
    }
}

/* Reads one "key=value": in pass 0 the shape and the chip, in pass 1 the numbers, so that the order
 * of the settings does not matter. */
static DPARI_COLD dpar_status dpari_cluster_setting(dpar_cluster *cluster, const char *s, size_t n,
                                                    int32_t pass, dpar_why *why)
{
    dpari_fields fields;
    dpari_setting setting;
    double number = 0.0;
    int32_t kind;
    int shape;
    dpar_status st;
    fields.list = dpari_machine_field;
    fields.count = (int32_t)(sizeof(dpari_machine_field) / sizeof(dpari_machine_field[0]));
    fields.of = "a machine";
    fields.more =
        ". Common ones: nodes gpus gpu nvlink nic taper memory hbm tflops pcie host nvme; "
        "dpar_cluster_read lists all";
    fields.own = dpari_cluster_own;
    st = dpari_setting_find(&setting, &fields, s, n, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (setting.field < 0) {
        return dpari_setting_bad(&setting, why, "key=value");
    }
    kind = dpari_machine_field[setting.field].kind;
    shape = kind == DPARI_MACHINE_NODES || kind == DPARI_MACHINE_GPUS || kind == DPARI_MACHINE_GPU;
    if (shape != (pass == 0)) {
        return DPAR_OK;
    }
    if (setting.field == (int)DPARI_KEY_CAL + (int)DPAR_CAL_HBM &&
        dpari_reals(setting.value, setting.value_length, &number, 1) && number > 2.0) {
        setting.field = DPARI_KEY_STREAM; /* hbm=0.8 is a share, hbm=3350 is GB/s */
    }
    st = dpari_setting_read(&setting, &fields, cluster, why);
    if (setting.field >= DPARI_KEY_CAL) { /* the default's error says nothing about this value */
        cluster->cal.error[setting.field - DPARI_KEY_CAL] = 0.0;
    }
    return st;
}

/* Reports that "2x8" gives nodes and GPUs but not the kind of GPU. */
static DPARI_COLD dpar_status dpari_cluster_no_gpu(const char *s, size_t n, dpar_why *why)
{
    char text[80];
    dpar_text t;
    if (n > 0 && s[n - 1] == ':') {
        n--;
    }
    dpar_text_init(&t, text, sizeof text);
    dpari_text_slice(&t, s, n < 24 ? n : 24);
    dpar_text_put(&t, "' lacks the GPU: '");
    dpari_text_slice(&t, s, n < 24 ? n : 24);
    dpar_text_put(&t, ":a100-80");
    return dpari_say(DPAR_E_PARSE, why,
                     "'%s' was expected; known: v100-32, a100-40, a100-80, h100-80, h200, "
                     "b200, gb200, l40s, mi250x, mi300x, tpu-v5p and more",
                     text);
}

/* Returns 1 for a text like "16" or "2x8", otherwise 0. */
static int dpari_cluster_is_counts(const char *s, size_t n)
{
    size_t i, x = 0;
    for (i = 0; i < n && ((s[i] >= '0' && s[i] <= '9') || s[i] == 'x' || s[i] == 'X'); i++) {
        x += s[i] == 'x' || s[i] == 'X';
    }
    return i == n && n > 0 && x <= 1 && s[0] >= '0' && s[0] <= '9' && s[n - 1] <= '9';
}

/* Reads the first word: "8x8:h100-80", "16xdgx-h100", "64:a100-80", "derecho". */
static DPARI_COLD dpar_status dpari_cluster_first(dpar_cluster *cluster, const char *s, size_t n,
                                                  dpar_why *why)
{
    const size_t colon = dpari_until(s, n, ':');
    size_t x = 0; /* the end of the number with which the word begins */
    int64_t nodes = 1, per_node = 0;
    dpar_status st;
    int fine;
    while (x < n && s[x] >= '0' && s[x] <= '9') {
        x++;
    }
    if (dpari_cluster_is_counts(s, colon) && colon + 1 >= n) {
        return dpari_cluster_no_gpu(s, n, why);
    }
    if (colon < n) {
        if (x < colon) {
            fine = (s[x] == 'x' || s[x] == 'X') && dpari_whole(s, x, 1, 10000000, &nodes) &&
                   dpari_whole(s + x + 1, colon - x - 1, 1, 65536, &per_node);
        } else {
            fine = dpari_whole(s, colon, 1, 65536, &per_node);
        }
        if (!fine) {
            return dpari_text_bad(s, n, why,
                                  "NODESxGPUS:GPU with 1 to 10000000 nodes of 1 to 65536 GPUs, "
                                  "such as 8x8:h100-80,");
        }
        st = dpari_gpu_slice(&cluster->gpu, s + colon + 1, n - colon - 1, why);
        if (st == DPAR_OK) {
            dpari_cluster_of_gpus(cluster, (int32_t)nodes, (int32_t)per_node);
            dpari_copy_text(cluster->name, sizeof(cluster->name), s, n);
        }
        return st;
    }
    if (x > 0 && x + 1 < n && (s[x] == 'x' || s[x] == 'X')) {
        if (!dpari_whole(s, x, 1, 10000000, &nodes)) {
            return dpari_text_bad(s, n, why, "a number of 1 to 10000000 machines");
        }
        st = dpari_cluster_slice(cluster, s + x + 1, n - x - 1, why);
        if (st == DPAR_OK) {
            cluster->nodes = (int32_t)nodes;
        }
        return st;
    }
    return dpari_cluster_slice(cluster, s, n, why);
}

/* Finds the next item, which ends at a comma, a comment or the end of the line. Sets *start to its
 * beginning and *at to the position after it. Returns its length without blanks, or 0 if there are
 * no more items. */
static DPARI_COLD size_t dpari_cluster_item(const char *text, size_t bytes, size_t *at,
                                            size_t *start)
{
    size_t end, i = *at;
    while (i < bytes && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n' ||
                         text[i] == ',' || text[i] == '#')) {
        if (text[i] == '#') {
            while (i < bytes && text[i] != '\n') {
                i++;
            }
        } else {
            i++;
        }
    }
    *start = i;
    while (i < bytes && text[i] != ',' && text[i] != '\n' && text[i] != '#' && text[i] != '\r') {
        i++;
    }
    end = i;
    while (end > *start && (text[end - 1] == ' ' || text[end - 1] == '\t')) {
        end--;
    }
    *at = i;
    return end - *start;
}

/* Copies an item without blanks, because people write "key = value" in files. Returns the length of
 * the copy. */
static DPARI_COLD size_t dpari_cluster_squeeze(char *to, size_t room, const char *s, size_t n)
{
    size_t i, k = 0;
    for (i = 0; i < n && k + 1 < room; i++) {
        if (s[i] != ' ' && s[i] != '\t') {
            to[k] = s[i];
            k++;
        }
    }
    to[k] = 0;
    return k;
}

/* Starts a machine from a list that has only settings: one node with one chip, which gpu=NAME gives
 * anywhere in the list. */
static DPARI_COLD dpar_status dpari_cluster_of_settings(dpar_cluster *cluster, const char *text,
                                                        size_t bytes, dpar_why *why)
{
    char item[96];
    size_t at = 0, start, n;
    for (;;) {
        n = dpari_cluster_item(text, bytes, &at, &start);
        if (n == 0) {
            break;
        }
        n = dpari_cluster_squeeze(item, sizeof(item), text + start, n);
        if (n > 4 && dpari_spells_any_case(item, 4, "gpu=")) {
            dpar_status st = dpari_gpu_slice(&cluster->gpu, item + 4, n - 4, why);
            if (st == DPAR_OK) {
                dpari_cluster_of_gpus(cluster, 1, 1);
                dpari_copy_text(cluster->name, sizeof(cluster->name), cluster->gpu.name,
                                sizeof(cluster->gpu.name) - 1);
            }
            return st;
        }
    }
    return dpari_say(DPAR_E_PARSE, why,
                     "the settings name no machine: begin with one (derecho, 8x8:h100-80) or give "
                     "gpu=NAME, nodes=N and gpus=N");
}

/* Puts "line 7: " before a message if the text has several lines. */
static DPARI_COLD dpar_status dpari_cluster_line(const char *text, size_t bytes, size_t at,
                                                 dpar_status st, dpar_why *why)
{
    dpar_why was;
    int32_t line = 1, lines = 1;
    size_t i;
    for (i = 0; i + 1 < bytes; i++) {
        line += text[i] == '\n' && i < at;
        lines += text[i] == '\n';
    }
    if (st == DPAR_OK || why == NULL || lines == 1) {
        return st;
    }
    was = *why;
    return dpari_say(st, why, "line %d: %s", line, was.text);
}

/* Counts down the settings that "settings=N" announced. At the end of the text, where n is 0, it
 * fails if settings are missing, because the file was then cut short. */
static DPARI_COLD dpar_status dpari_cluster_promise(const char *item, size_t n, int32_t *left,
                                                    dpar_why *why)
{
    *left -= n > 0 && *left > 0;
    if (n > 9 && dpari_spells_any_case(item, 9, "settings=")) {
        int64_t count = 0;
        *left = dpari_whole(item + 9, n - 9, 1, 10000, &count) ? (int32_t)count : 0;
    }
    if (n == 0 && *left > 0) {
        return dpari_say(DPAR_E_PARSE, why, "the file ends too early: %d settings are missing",
                         *left);
    }
    return DPAR_OK;
}

/* Makes one pass over the text: reads the machine, then the settings that belong to the pass. */
static DPARI_COLD dpar_status dpari_cluster_read(dpar_cluster *cluster, const char *text,
                                                 size_t bytes, int32_t pass, dpar_why *why)
{
    char item[96];
    size_t at = 0, start, n, items;
    int32_t left = 0;
    int setting = 0;
    dpar_status st = DPAR_OK;
    for (items = 0; st == DPAR_OK; items++) {
        n = dpari_cluster_item(text, bytes, &at, &start);
        if (n == 0) {
            st = dpari_cluster_promise(item, n, &left, why);
            break;
        }
        if (n >= sizeof(item)) {
            st = dpari_say(DPAR_E_PARSE, why, "'%.*s...' has %ld bytes: a setting has at most %ld",
                           (int32_t)60, text + start, (int64_t)n, (int64_t)sizeof item - 1);
            break;
        }
        n = dpari_cluster_squeeze(item, sizeof(item), text + start, n);
        (void)dpari_cluster_promise(item, n, &left, why);
        if (items == 0) {
            size_t named = n > 8 && dpari_spells_any_case(item, 8, "machine=") ? 8 : 0;
            setting = named == 0 && dpari_until(item, n, '=') < n;
            if (pass == 0) {
                st = setting ? dpari_cluster_of_settings(cluster, text, bytes, why)
                             : dpari_cluster_first(cluster, item + named, n - named, why);
            }
        }
        if (st == DPAR_OK && (items > 0 || setting)) {
            st = dpari_cluster_setting(cluster, item, n, pass, why);
        }
    }
    if (st != DPAR_OK) {
        return dpari_cluster_line(text, bytes, start, st, why);
    }
    if (items == 0) {
        return dpari_say(DPAR_E_PARSE, why,
                         "no machine: give a preset (derecho, dgx-h100 ...) or "
                         "NODESxGPUS:GPU (8x8:h100-80)");
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_cluster_read(dpar_cluster *cluster, const char *text,
                                                  size_t bytes, dpar_why *why)
{
    dpar_cluster c;
    dpar_status st;
    dpari_zero(&c, sizeof(c));
    text += dpari_text_mark(text, bytes, &bytes);
    st = dpari_cluster_read(&c, text, bytes, 0, why);
    if (st == DPAR_OK) {
        st = dpari_cluster_read(&c, text, bytes, 1, why);
    }
    if (st == DPAR_OK) {
        st = dpari_cluster_check(&c, why);
    }
    if (st == DPAR_OK) {
        *cluster = c;
    }
    return st;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Returns 1 if v is positive and at most `limit`, so that no product of such numbers overflows. */
static int dpari_positive(double v, double limit)
{
    return v > 0.0 && v <= limit;
}

/* Returns 1 if v is 0 to 1e18, otherwise 0 (also for NaN). */
static int dpari_not_negative(double v)
{
    return v >= 0.0 && v <= 1e18;
}

/* Checks the chip, the links, the NICs and the host. */
static DPARI_COLD dpar_status dpari_cluster_check_numbers(const dpar_cluster *cluster,
                                                          dpar_why *why)
{
    if (!dpari_positive(cluster->gpu.memory_bytes, 1e18) ||
        !dpari_positive(cluster->gpu.memory_Bps, 1e18) ||
        !dpari_positive(cluster->gpu.flops[DPAR_BF16], 1e21)) {
        return dpari_wrong(why,
                           "GPU '%s': memory, bandwidth and FLOP/s must be positive numbers "
                           "of at most 1e9 GB, 1e9 GB/s and 1e9 TFLOP/s",
                           cluster->gpu.name);
    }
    if ((cluster->gpus_per_node > 1 && !dpari_positive(cluster->link_Bps, 1e18)) ||
        (cluster->nodes > 1 && (cluster->nics < 1 || !dpari_positive(cluster->nic_Bps, 1e18)))) {
        return dpari_wrong(why,
                           "%d nodes of %d GPUs with %d NICs: the bandwidths nvlink=GB/s and "
                           "nic=COUNTxGB/s must be positive and at most 1e9 GB/s",
                           cluster->nodes, cluster->gpus_per_node, cluster->nics);
    }
    if (cluster->nics < 0 || !dpari_not_negative(cluster->link_Bps) ||
        !dpari_not_negative(cluster->nic_Bps) || !dpari_not_negative(cluster->gpu.pcie_Bps) ||
        !dpari_not_negative(cluster->host_bytes) || !dpari_not_negative(cluster->nvme_Bps)) {
        return dpari_wrong(
            why, "nvlink, nic, pcie, host and nvme must be numbers of 0 to 1e9 GB or GB/s");
    }
    if (!(cluster->taper > 0.0 && cluster->taper <= 1.0)) {
        char text[32];
        dpar_text t;
        dpar_text_init(&t, text, sizeof text);
        dpari_text_fixed(&t, cluster->taper, 3);
        return dpari_wrong(why, "taper=%s must be a share above 0 and at most 1", text);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_cluster_check(const dpar_cluster *cluster,
                                                          dpar_why *why)
{
    int64_t gpus = 0;
    int32_t i;
    dpar_status st;
    if (cluster->nodes < 1 || cluster->gpus_per_node < 1 ||
        !dpari_mul(cluster->nodes, cluster->gpus_per_node, &gpus) || gpus > 100000000) {
        return dpari_wrong(why, "%d nodes of %d GPUs: a machine has 1 to 100000000 GPUs",
                           cluster->nodes, cluster->gpus_per_node);
    }
    st = dpari_cluster_check_numbers(cluster, why);
    for (i = 0; st == DPAR_OK && i < DPAR_CAL_COUNT; i++) {
        const dpari_field *key = &dpari_machine_field[DPARI_KEY_CAL + i];
        double v = cluster->cal.value[i];
        int share = i != DPAR_CAL_CONTENTION && i != DPAR_CAL_SKEW && key->kind == DPARI_FIELD_REAL;
        if (!(v >= 0.0 && v <= (share ? 2.0 : 10.0)) || (share && !(v > 0.0))) {
            st = dpari_wrong(why,
                             share ? "calibration '%s' must be a share above 0 and at most 2 (a "
                                     "larger hbm is GB/s)"
                                   : "calibration '%s' must be 0 to 10 (times in seconds)",
                             key->name);
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_cluster_resize(dpar_cluster *cluster, int32_t gpus,
                                                    dpar_why *why)
{
    dpar_cluster sized = *cluster;
    dpar_status st;
    if (gpus < 1) {
        return dpari_wrong(why, "gpus=%d must be at least 1", gpus);
    }
    if (cluster->gpus_per_node < 1) {
        return dpari_cluster_check(cluster, why);
    }
    if (gpus < cluster->gpus_per_node) {
        int64_t nics = (int64_t)cluster->nics * gpus / cluster->gpus_per_node;
        sized.nodes = 1;
        sized.nics = cluster->nics > 0 ? (int32_t)dpari_most(1, nics) : 0;
        sized.gpus_per_node = gpus;
    } else if (gpus % cluster->gpus_per_node != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "gpus=%d is not a multiple of %d GPUs per node", gpus,
                         cluster->gpus_per_node);
    } else {
        sized.nodes = gpus / cluster->gpus_per_node;
    }
    st = dpari_cluster_check(&sized, why);
    if (st == DPAR_OK) {
        *cluster = sized;
    }
    return st;
}
