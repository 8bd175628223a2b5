#!/bin/sh
# SPDX-License-Identifier: MIT-0
# The GPU wing without a GPU: the stand-ins of tests/gpu/fake (built, and tested themselves), then the
# tests of dpar_cuda.h and dpar_nccl.h over them, with streams that run late, early and in turns. Where
# nvcc is found: dpar_cuda.h, its tests and the examples compiled by it, dpar_nccl.h against the real
# header, all linked. What cannot be done here is named. tests/gpu/run.sh [keep]: keep the programs in
# build/gpu. DPAR_NCCL_HOME: a folder with include/nccl.h and lib/libnccl.so.2. DPAR_CUDA_ARCH (sm_90).
. tests/compile/common.sh
: "${CXX:=g++}" "${DPAR_CUDA_ARCH:=sm_90}"
need "$CXX"
export CXX
bin=$work
[ "${1:-}" != keep ] || { bin=$PWD/build/gpu && mkdir -p "$bin"; }
include="-I$DPAR_DIR -I. -Itests"
slim='-DDPAR_NO_COST -DDPAR_NO_SHOW'
cxx_flags="-std=c++17 -O1 -Wall -Wextra -Wshadow -Werror -Wno-unknown-pragmas -Wno-missing-field-initializers -pthread"
export FAKE_LIBRARIES="$bin" FAKE_NCCL_DIR="$bin/meet" FAKE_NCCL_DEADLINE=60
mkdir -p "$bin/meet"
skipped() { echo "skipped: $1: $2"; }
has() { [ -e "$DPAR_DIR/$1" ] && [ -e "${2:-$1}" ]; }

cxx() { # program, sources and flags
    name=$1
    shift
    try $CXX $cxx_flags -Itests/gpu/fake $include "$@" -o "$bin/$name" -L"$bin" -lcudart -ldl -Wl,-rpath,"$bin"
}
c() { # the same in C
    name=$1
    shift
    try $CC -std=c99 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror $slim -DDPAR_STATIC -DDPAR_IMPLEMENTATION \
        -Itests/gpu/fake $include "$@" -o "$bin/$name" -L"$bin" -lcudart -ldl -lm -pthread -Wl,-rpath,"$bin"
}

# The real header, library and runtime. The driver, which is where a GPU is, may be missing.
real() {
    how=
    [ "$1" = real_nccl ] || how="-DDPAR_NCCL_LINK $nccl/lib/libnccl.so.2 -Wl,-rpath,$nccl/lib"
    try $CC -std=c99 -D_GNU_SOURCE -O0 -Wall -Wextra $slim -DDPAR_STATIC -DDPAR_IMPLEMENTATION -isystem "$nccl/include" \
        -isystem "$cuda/include" $include tests/gpu/link.c -o "$bin/$1" $how -L"$cuda/lib64" -L"$cuda/lib" -lcudart -lm -ldl \
        -pthread -Wl,--unresolved-symbols=ignore-in-shared-libs -Wl,-rpath,"$cuda/lib64:$cuda/lib"
}

# Strategies of tests/ranks over both headers: one unit each, and the test.
ranks_parts() {
    printf '#define DPAR_CUDA_IMPLEMENTATION\n#include "dpar_cuda.h"\n' > "$work/cuda_part.cc"
    printf '#define DPAR_IMPLEMENTATION\n#include "dpar.h"\n#include "dpar_nccl.h"\n' > "$work/nccl_part.c"
    try $CXX -std=c++17 -O1 -w -pthread $slim -Itests/gpu/fake $include -c "$work/cuda_part.cc" -o "$bin/cuda_part.o"
    try $CC -std=c99 -D_GNU_SOURCE -O1 $slim -DDPAR_NCCL_LINK -Itests/gpu/fake $include -c "$work/nccl_part.c" \
        -o "$bin/nccl_part.o"
    for name in $rank_tests; do
        try $CC -D_GNU_SOURCE -O1 $slim -DDEVICE_MEMORY -DDEVICE_CUDA -DDPAR_NCCL_LINK -Itests/gpu/fake $include \
            "tests/ranks/$name.c" "$bin/nccl_part.o" "$bin/cuda_part.o" -o "$bin/$name" -L"$bin" -lnccl -lcudart -lstdc++ \
            -ldl -lm -pthread -Wl,-rpath,"$bin"
    done
    for name in $examples; do
        try $CXX $cxx_flags $slim -DDPAR_NCCL_LINK -Itests/gpu/fake $include -x c++ "examples/$name.cu" -x none \
            "$bin/nccl_part.o" "$bin/cuda_part.o" -o "$bin/$name" -L"$bin" -lnccl -lcudart -ldl -lm -Wl,-rpath,"$bin"
    done
}
examples=$(cd examples && ls | sed -n 's/\.cu$//p')
rank_tests='tensor sequence ddp'

build() {
    case $1 in
    ranks) ranks_parts ;;
    fake_test) cxx fake_test tests/gpu/fake_test.cc ;;
    fake_nccl_test) cxx fake_nccl_test $slim -DDPAR_STATIC -DDPAR_IMPLEMENTATION tests/gpu/fake_nccl_test.cc -lnccl ;;
    kernels) cxx kernels -Wno-error tests/gpu/kernels.cc ;;
    strategies) cxx strategies -O0 -Wno-error tests/gpu/strategies.cc ;;
    nccl) c nccl tests/gpu/nccl.c ;;
    nccl_old) c nccl_old -DFAKE_NCCL_HEADER=21805 tests/gpu/nccl.c ;;
    nvcc_*) nvcc_build "${1#nvcc_}" ;;
    real_nccl | real_nccl_linked) real "$1" ;;
    esac
}

# ---- the compilers of NVIDIA ----

cuda= nccl=
for nvcc in "${NVCC:-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do
    [ -z "$cuda" ] && [ -x "$nvcc" ] && cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")") && NVCC=$nvcc
done
for folder in "${DPAR_NCCL_HOME:-}" \
    "$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2> /dev/null)" /usr /usr/local; do
    if [ -z "$nccl" ] && [ -n "$folder" ] && [ -e "$folder/include/nccl.h" ]; then
        [ ! -e "$folder/lib/libnccl.so.2" ] || nccl=$folder
    fi
done
nvcc_build() { # of examples their own code alone: tools/gpu-check builds and links all of them
    case $1 in
    kernels) try "$NVCC" -x cu -std=c++17 -arch="$DPAR_CUDA_ARCH" $include tests/gpu/kernels.cc -o "$bin/nvcc_kernels" -ldl ;;
    *) try "$NVCC" -std=c++17 -arch="$DPAR_CUDA_ARCH" -Werror all-warnings $slim -isystem "$nccl/include" $include \
        -c "examples/$1.cu" -o "$bin/nvcc_$1.o" ;;
    esac
}

# ---- build ----

programs=
if has dpar_cuda.h tests/gpu/kernels.cc; then
    programs=kernels
    if [ -n "$cuda" ]; then
        programs="nvcc_kernels $programs"
        for name in $examples; do
            [ -z "$nccl" ] || programs="nvcc_$name $programs"
        done
        [ -n "$nccl" ] || skipped "examples, nvcc" 'no nccl.h'
    else
        skipped nvcc 'not found'
    fi
else
    skipped kernels 'no dpar_cuda.h or no test of it'
fi
if has dpar_nccl.h tests/gpu/nccl.c; then
    programs="$programs nccl nccl_old"
    if [ -n "$nccl" ] && [ -n "$cuda" ]; then
        programs="real_nccl real_nccl_linked $programs"
    else
        skipped real_nccl "no ${nccl:-nccl.h with libnccl.so.2}${nccl:+nvcc}"
    fi
else
    skipped nccl 'no dpar_nccl.h or no test of it'
fi
if has dpar_cuda.h && has dpar_nccl.h; then
    programs="ranks $programs"
fi
case $programs in
*kernels*nccl*) [ ! -e tests/gpu/strategies.cc ] || programs="strategies $programs" ;;
esac
try sh tests/gpu/fake/build.sh "$bin" 21805 22105
in_pairs build $programs fake_nccl_test fake_test

# ---- run ----

run() { # what to say, command
    what=$1
    shift
    timeout 100 "$@" > "$work/said" 2>&1 || { echo "failed: $what"; tail -n 40 "$work/said"; exit 1; }
    echo "$what: $(tail -n 1 "$work/said")"
}

# The examples, on the stand-ins: bits and losses against one rank (--check), and losses beside each
# other, which fall. llm RANKS and options.
llm() {
    n=$1
    shift
    run "ddp_llm, $n ranks${*:+, $*}" "$bin/ddp_llm" --ranks "$n" --text LICENSE --steps 12 --check "$@"
    awk '/^step/ { if (!n++) { first = $4 } last = $4 } END { print first, last }' "$work/said" >> "$work/losses"
}
refused() { # the sentence, command
    sentence=$1
    shift
    "$@" > "$work/said" 2>&1
    [ $? = 2 ] && [ "$(wc -l < "$work/said")" = 1 ] && grep -q "$sentence" "$work/said" ||
        { echo "failed: not refused: $*"; cat "$work/said"; exit 1; }
}
run_examples() {
    for n in 1 2 3; do
        run "stencil, $n ranks" "$bin/stencil" --ranks $n --cells 13 --steps 12 --check
    done
    run "stencil, 2 ranks by a launcher" env "DPAR_NCCL_FILE=$work/ranks_$1" sh -c 'export DPAR_SIZE=2 DPAR_JOB=$$
        DPAR_RANK=1 "$0" "$@" & DPAR_RANK=0 "$0" "$@"; bad=$?; wait $! && exit $bad' \
        "$bin/stencil" --cells 9 --steps 5 --rate 0.15 --apart --check
    llm 2
    [ "$1" = 0 ] || { llm 1 --zero 2; llm 3 --zero 1; llm 2 --zero 3 --bf16; return; }
    llm 3 --zero 3
    llm 3 --zero 2 --micros 1
    llm 2 --zero 1 --bf16
    refused 'no grid of 9 ranks' "$bin/stencil" --ranks 9 --cells 2
    refused '^stencil: not a number that fits.*--rate' "$bin/stencil" --rate 0.2
    refused 'f32 masters' "$bin/ddp_llm" --bf16
    refused 'multiple of ranks' "$bin/ddp_llm" --ranks 5
}

run fake_test "$bin/fake_test"
run fake_nccl_test "$bin/fake_nccl_test"
case " $programs " in
*' real_nccl '*)
    DPAR_NCCL_LIBRARY=$nccl/lib/libnccl.so.2 run real_nccl "$bin/real_nccl"
    grep -v checks "$work/said"
    DPAR_NCCL_LIBRARY="$bin/libnccl.so.2" run "symbols of the real NCCL" "$bin/nccl" real "$nccl/lib/libnccl.so.2"
    run real_nccl_linked "$bin/real_nccl_linked"
    ;;
esac
for seed in ${GPU_SEEDS:-0 1 2 3 7}; do
    export FAKE_CUDA_SEED=$seed
    case " $programs $seed" in # 2 ranks, 3 where streams take turns
    *' ranks '*[02])
        for name in $rank_tests; do
            FAKE_CUDA_GUARD=0 run "$name, seed $seed" "$bin/$name" processes $((2 + seed / 2))
        done
        ;;
    esac
    case " $programs $seed" in
    *' ranks '*[01]) run_examples "$seed" ;; # late, early
    esac
    case " $programs " in
    *' kernels '*) [ "$seed" -gt 1 ] || run "kernels, seed $seed" "$bin/kernels" ;;
    esac
    case " $programs $seed" in
    *' strategies '*[037]) DPAR_NCCL_LIBRARY="$bin/libnccl.so.2" run "strategies, seed $seed" "$bin/strategies" ;;
    esac
    case " $programs " in
    *' nccl '*)
        DPAR_NCCL_LIBRARY="$bin/libnccl.so.2" run "nccl, seed $seed" "$bin/nccl"
        case $seed in
        2) DPAR_NCCL_LIBRARY="$bin/21805/libnccl.so.2" run "nccl 2.18.5" "$bin/nccl_old" ;;
        3) DPAR_NCCL_LIBRARY="$bin/22105/libnccl.so.2" run "nccl 2.21.5" "$bin/nccl_old" ;;
        7) DPAR_NCCL_LIBRARY="$bin/libnccl.so.2" FAKE_CUDA_GUARD=0 FAKE_NCCL_RING=1 run "nccl, sums as a ring" "$bin/nccl" exact ;;
        esac
        ;;
    esac
done
unset FAKE_CUDA_SEED
if [ -e "$work/losses" ]; then # from log(256) = 5.55 or so; bf16 nearly as f32
    awk '!($2 < $1 - 1 && $2 > 1) { print "losses did not fall:", $0; bad = 1 }
        { low = NR == 1 || $2 < low ? $2 : low; high = $2 > high ? $2 : high }
        END { if (!(high - low < 0.02)) { print "losses differ:", low, high; bad = 1 } exit bad }' "$work/losses" || exit 1
fi
left=$(ls "$bin/meet")
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
echo "GPU wing without a GPU:$(printf ' %s' $programs) fake_test fake_nccl_test"
