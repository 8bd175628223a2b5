/* SPDX-License-Identifier: MIT-0 */
/* apart: runs each test in its own process, because a device cannot be used after fork. C++17. */
#ifndef GPU_APART_H
#define GPU_APART_H

#include "check.h"
#include "cuda_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

static std::string said; // by the last child on stderr

// Runs the test in a new process. Returns its exit status, or -signal.
template <class F> static int apart(F test)
{
    int ends[2];
    char text[512];
    std::fflush(nullptr);
    if (pipe(ends) != 0) {
        return -1000;
    }
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        checks_failed = 0;
        test();
        std::exit(checks_failed > 0);
    }
    close(ends[1]);
    said.clear();
    for (ssize_t n; (n = read(ends[0], text, sizeof text)) > 0;) {
        said.append(text, (size_t)n);
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static inline bool says(const char *words)
{
    return said.find(words) != std::string::npos;
}

#define FINE(...)                                                                         \
    do {                                                                                  \
        const int fine_how = apart([&] { __VA_ARGS__; });                                 \
        CHECK_INT(fine_how, 0);                                                           \
        if (fine_how != 0) {                                                              \
            std::printf("%s\n%s\n", #__VA_ARGS__, said.c_str());                          \
        }                                                                                 \
    } while (0)
#define OK(call) CHECK_INT(call, 0)

static inline void seed(int s)
{
    setenv("FAKE_CUDA_SEED", std::to_string(s).c_str(), 1);
    setenv("FAKE_CUDA_HOLD", "1000", 1); // so that a test that waits for this is noticeably slow
}

static inline cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking)
{
    cudaStream_t s = nullptr;
    OK(cudaStreamCreateWithFlags(&s, flags));
    return s;
}

static inline cudaEvent_t new_event()
{
    cudaEvent_t e = nullptr;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

template <class T> static T *device(size_t n)
{
    void *at = nullptr;
    OK(cudaMalloc(&at, n * sizeof(T)));
    return (T *)at;
}

#endif
