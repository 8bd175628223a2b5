/* SPDX-License-Identifier: MIT-0 */
/* Loads NCCL with dlopen, or takes the addresses of the linked functions (DPAR_NCCL_LINK). The
 * lists of library.h name the functions of each version. Functions that are newer than the
 * library's own version are removed again, because a library may contain some that it does not
 * support yet. */
#include "library.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"

#if defined(DPAR_NCCL_LINK)
#if NCCL_VERSION_CODE >= 22902 /* it is declared only in nccl_device.h, which is C++ */
#ifdef __cplusplus
extern "C"
#endif
    ncclResult_t
    ncclGetPeerDevicePointer(ncclWindow_t, size_t, int, void **);
#endif
static dpar_status dpari_nccl_symbols(dpari_nccl_api *api, dpar_why *why)
{
    (void)why;
    api->GetErrorString = ncclGetErrorString;
    api->GetLastError = ncclGetLastError;
#define DPARI_NCCL_TAKE(name, args) api->name = nccl##name;
    DPARI_NCCL_ALWAYS(DPARI_NCCL_TAKE)
#if NCCL_VERSION_CODE >= 21900
    DPARI_NCCL_21900(DPARI_NCCL_TAKE)
#endif
#if NCCL_VERSION_CODE >= 22703
    DPARI_NCCL_22703(DPARI_NCCL_TAKE)
#endif
#if NCCL_VERSION_CODE >= 22803
    DPARI_NCCL_22803(DPARI_NCCL_TAKE)
#endif
#if NCCL_VERSION_CODE >= 22807
    DPARI_NCCL_22807(DPARI_NCCL_TAKE)
#endif
#if NCCL_VERSION_CODE >= 22902
    DPARI_NCCL_22902(DPARI_NCCL_TAKE)
#endif
#undef DPARI_NCCL_TAKE
    return DPAR_OK;
}
#else
/* Stores the address of the library's function `name` in *to. It is copied as a pointer to data,
 * which POSIX allows. Returns 0 if the library lacks the function. */
static int32_t dpari_nccl_symbol(void *library, const char *name, void *to)
{
    void *at = dlsym(library, name);
    memcpy(to, &at, sizeof at);
    return at != NULL;
}

static dpar_status dpari_nccl_symbols(dpari_nccl_api *api, dpar_why *why)
{
    const char *name = getenv("DPAR_NCCL_LIBRARY"), *lacks = NULL, *said;
    name = name != NULL && name[0] != 0 ? name : "libnccl.so.2";
    api->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (api->library == NULL) {
        said = dlerror();
        return dpari_say(
            DPAR_E_SYSTEM, why,
            "cannot load NCCL: %s; set LD_LIBRARY_PATH to its folder, or DPAR_NCCL_LIBRARY to it",
            said != NULL ? said : name);
    }
#define DPARI_NCCL_NEED(name, args)                                                                \
    if (!dpari_nccl_symbol(api->library, "nccl" #name, &api->name)) {                              \
        lacks = "nccl" #name;                                                                      \
    }
#define DPARI_NCCL_TRY(name, args) (void)dpari_nccl_symbol(api->library, "nccl" #name, &api->name);
    DPARI_NCCL_ALWAYS(DPARI_NCCL_NEED)
    DPARI_NCCL_NEED(GetErrorString, )
    DPARI_NCCL_TRY(GetLastError, )
    DPARI_NCCL_21900(DPARI_NCCL_TRY)
    DPARI_NCCL_22703(DPARI_NCCL_TRY)
    DPARI_NCCL_22803(DPARI_NCCL_TRY)
    DPARI_NCCL_22807(DPARI_NCCL_TRY)
    DPARI_NCCL_22902(DPARI_NCCL_TRY)
#undef DPARI_NCCL_NEED
#undef DPARI_NCCL_TRY
    if (lacks != NULL) {
        return dpari_say(DPAR_E_SYSTEM, why, "the NCCL library %s has no function %s", name, lacks);
    }
    return DPAR_OK;
}
#endif

/* Removes the functions that a version does not support, even if the library has their symbols: the
 * library of 2.28.9 contains some of later versions. */
static void dpari_nccl_by_version(dpari_nccl_api *api, int32_t version)
{
    api->version = version;
#define DPARI_NCCL_DROP(name, args) api->name = NULL;
    if (version < 21901) {
        DPARI_NCCL_21900(DPARI_NCCL_DROP)
    }
    if (version < 22703) {
        DPARI_NCCL_22703(DPARI_NCCL_DROP)
    }
    if (version < 22803) {
        DPARI_NCCL_22803(DPARI_NCCL_DROP)
    }
    if (version < 22807) {
        DPARI_NCCL_22807(DPARI_NCCL_DROP)
    }
    if (version < 22902) {
        DPARI_NCCL_22902(DPARI_NCCL_DROP)
    }
#undef DPARI_NCCL_DROP
}

DPARI_INTERNAL void dpari_nccl_put_version(dpar_text *text, int32_t version)
{
    dpari_text_say(text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

DPARI_INTERNAL dpar_status dpari_nccl_load(dpari_nccl_api *api, dpar_why *why)
{
    int version = 0;
    char text[40];
    dpar_text t;
    dpar_status status;
    memset(api, 0, sizeof *api);
    status = dpari_nccl_symbols(api, why);
    if (status < 0) {
        return status;
    }
    if (api->GetVersion(&version) != ncclSuccess || version < DPARI_NCCL_OLDEST) {
        dpar_text_init(&t, text, sizeof text);
        dpari_nccl_put_version(&t, version);
        return dpari_say(DPAR_E_SYSTEM, why, "NCCL %s is too old: dpar needs 2.18 or later", text);
    }
    dpari_nccl_by_version(api, (int32_t)version);
    return DPAR_OK;
}
