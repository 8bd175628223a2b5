/* SPDX-License-Identifier: MIT-0 */
/* Include before headers whose waits tests/gpu/run.sh has put into FAKE_WAIT, see
 * FAKE_CUDA_WITHIN. */
#include "cuda_runtime.h"
#define FAKE_WAIT(call)                                                                            \
    (fake_cuda_within(__FILE__, __LINE__) ? fake_cuda_within_ends(call) : (call))
