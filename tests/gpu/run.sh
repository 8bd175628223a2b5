#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests the code for GPUs without a GPU: builds and tests the stand-ins of tests/gpu/fake, then runs the tests of
# dpar_cuda.h and dpar_nccl.h over them, with streams that run late, early and in random order. If nvcc is found,
# it compiles all that tools/gpu-check builds, compiles dpar_nccl.h with the real header, and links everything, with
# NCCL loaded and with NCCL linked; a push takes half of the programs. Prints what cannot be done here.
#     tests/gpu/run.sh [keep]         keeps the programs in build/gpu if all tests pass
#     tests/gpu/run.sh build FOLDER   only the programs that mutate_events.sh runs
#     tests/gpu/run.sh sources        prints the sources that the kept programs were built from
# DPAR_NCCL_HOME: a folder with include/nccl.h and libnccl.so.2 (cuda.sh). DPAR_CUDA_ARCH (sm_90).
. tests/compile/common.sh
: "${CXX:=g++}" "${DPAR_CUDA_ARCH:=sm_90}"
need "$CXX"
export CXX
sources() { cat "$DPAR_DIR"/dpar*.h tests/lib/*.h tests/*/ranks/*.c tests/gpu/*.c* tests/gpu/*.h tests/gpu/fake/* apps/*.* helpers/*.h | cksum; }
bin=$work
case ${1:-} in
keep) bin=$PWD/build/gpu && rm -f "$bin/sources" ;;
build) bin=$2 ;;
sources) sources && exit ;;
esac
mkdir -p "$bin"
include="-I$DPAR_DIR -I. -Itests/lib"
cxx_flags="-std=c++17 -O1 -Wall -Wextra -Wshadow -Werror -Wno-unknown-pragmas -Wno-missing-field-initializers -pthread"
export FAKE_LIBRARIES="$bin" FAKE_NCCL_DIR="$bin/meet" FAKE_NCCL_DEADLINE=60
mkdir -p "$bin/meet"
skipped() { echo "skipped: $1: $2"; }
has() { [ -e "$DPAR_DIR/$1" ] && [ -e "${2:-$1}" ]; }

cxx() { # program, sources and flags in C++
    name=$1
    shift
    try $CXX $cxx_flags -Itests/gpu/fake $include "$@" -o "$bin/$name" -L"$bin" -lcudart -ldl -Wl,-rpath,"$bin"
}
c() { # the same in C
    name=$1
    shift
    try $CC -std=c99 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -DDPAR_STATIC -DDPAR_IMPLEMENTATION \
        -Itests/gpu/fake $include "$@" -o "$bin/$name" -L"$bin" -lcudart -ldl -lm -pthread -Wl,-rpath,"$bin"
}

# The real header, library and runtime. The driver, which is where a GPU is, may be missing.
real() {
    how=
    [ "$1" = real_nccl ] || how="-DDPAR_NCCL_LINK $nccl_library -Wl,-rpath,${nccl_library%/*}"
    try $CC -std=c99 -D_GNU_SOURCE -O1 -Wall -Wextra -DDPAR_STATIC -DDPAR_IMPLEMENTATION $nccl_headers $cuda_headers \
        $include tests/gpu/link.c -o "$bin/$1" $how $cuda_link -lcudart -lm -ldl -pthread -Wl,--unresolved-symbols=ignore-in-shared-libs
}

# Everything that ranks with GPUs use, in one unit.
whole='#include "dpar_blocks.h"
#include "dpar_cost.h"
#include "dpar_exact.h"
#include "dpar_spatial.h"
#include "dpar_debug.h"
#include "dpar_nccl.h"'

# The programs need the stand-ins, and as objects dpar.h with dpar_nccl.h, and dpar_cuda.h.
prepare() {
    case $1 in
    standins) try sh tests/gpu/fake/build.sh "$bin" $versions ;;
    nvcc_*) nvcc_part "${1#nvcc_}" ;;
    cuda_part)
        printf '#include "dpar_train.h"\n#define DPAR_CUDA_IMPLEMENTATION\n#include "dpar_cuda.h"\n' > "$work/cuda_part.cc"
        try $CXX -std=c++17 -O1 -w -pthread -Itests/gpu/fake $include -c "$work/cuda_part.cc" -o "$bin/cuda_part.o"
        ;;
    nccl_part)
        mkdir -p "$work/waits" && echo "$whole" > "$work/waits/nccl_part.c"
        # marks the waits of strategies for mutate_events.sh
        for each in $headers dpar_nccl; do
            sed -E '/^DPARI?_(API|DOOR|INTERNAL)/!s/(dpar_wait\((&[^()]*|work)\)|dpari_do_wait\([a-z>-]+\)|m(em)?->wait\(m(em)?->ctx\))/FAKE_WAIT(\1)/' \
                "$DPAR_DIR/$each.h" > "$work/waits/$each.h"
        done
        try $CC -std=c99 -D_GNU_SOURCE -O1 -DDPAR_IMPLEMENTATION -DDPAR_NCCL_LINK -Itests/gpu/fake -include tests/gpu/fake/waits.h $include \
            -c "$work/waits/nccl_part.c" -o "$bin/nccl_part.o"
        ;;
    esac
}
linked() { # name, and how to compile it; links both objects
    name=$1
    shift
    try "$@" -DDPAR_NCCL_LINK -Itests/gpu/fake $include "$bin/nccl_part.o" "$bin/cuda_part.o" -o "$bin/$name" -L"$bin" \
        -lnccl -lcudart -lstdc++ -ldl -lm -pthread -Wl,-rpath,"$bin"
}
examples=$(cd apps && ls | sed -n 's/\.cu$//p')
rank_tests='tensor sequence ulysses window_attention ddp ddp_codes ddp_arrays zero1 fsdp pipeline spatial expert move'

build() {
    case $1 in
    rank_*) linked "${1#rank_}" $CC -D_GNU_SOURCE -O1 -DDEVICE_MEMORY -DDEVICE_CUDA tests/*/ranks/${1#rank_}.c ;;
    example_*) linked "${1#example_}" $CXX $cxx_flags -ffp-contract=off -x c++ "apps/${1#example_}.cu" -x none ;;
    gpu_halo) linked gpu_halo $CXX $cxx_flags -x c++ bench/gpu_halo.cu -x none ;;
    gpu_bus) linked gpu_bus $CXX $cxx_flags -x c++ bench/gpu_bus.cu -x none ;;
    planet) linked planet $CC -D_GNU_SOURCE -O1 -ffp-contract=off apps/shallow_water.c ;;
    gpt_parts) # the host's train_gpt in f64, the comparison, a stand-in for cuBLAS
        linked gpt_host $CC -D_GNU_SOURCE -O1 -DGPT_DOUBLE apps/train_gpt.c
        try $CC -O1 -Wall -Wextra -Werror tests/gpu/gpt_apart.c -o "$bin/gpt_apart" -lm
        try $CXX -std=c++17 -O1 -fPIC -shared -Itests/gpu/fake tests/gpu/fake/fake_cublas.cc -o "$bin/fake_cublas.so" \
            -L"$bin" -lcudart -Wl,-rpath,"$bin"
        ;;
    fake_test) cxx fake_test tests/gpu/fake_test.cc ;;
    fake_nccl_test) cxx fake_nccl_test -DDPAR_STATIC -DDPAR_IMPLEMENTATION tests/gpu/fake_nccl_test.cc -lnccl ;;
    kernels) cxx kernels -DDPAR_STATIC -Wno-error tests/gpu/kernels.cc ;;
    core) cxx core -DDPAR_STATIC -Wno-error tests/gpu/core.cc ;;
    gpu_kernels) cxx gpu_kernels -DSMALL -x c++ bench/gpu_kernels.cu -x none ;;
    strategies) linked strategies $CXX $cxx_flags -DDPAR_APART tests/gpu/strategies.cc ;;
    nccl) c nccl tests/gpu/nccl.c ;;
    nccl_mpi) (CC=mpicc.openmpi && c nccl_mpi -DUSE_MPI tests/gpu/nccl.c) ;;
    nccl_old) c nccl_old -DFAKE_NCCL_HEADER=21805 tests/gpu/nccl.c ;;
    nvcc_*) nvcc_build "${1#nvcc_}" ;;
    real_nccl | real_nccl_linked) real "$1" ;;
    esac
}

# ---- the compilers of NVIDIA ----

. tests/gpu/cuda.sh
# Compiles without optimisation: only a device can test the machine code (tools/gpu-check).
nvcc() { # architecture and more arguments; -x cu also links with objects
    try "$NVCC" -std=c++17 -O0 -Xcicc -O0 -Xptxas -O0 -Werror all-warnings $nccl_headers $include -arch="$@"
}
# A push takes every fourth program, alternately.
nvcc_programs=$(set -- $examples gpu_halo gpu_bus gpu_kernels strategies
    some_of "$@")
source_of() { ls "apps/$1.cu" "bench/$1.cu" "tests/gpu/$1.cc" 2> /dev/null; }
# Once for all programs: the kernels of dpar_cuda.h; dpar.h with dpar_nccl.h, which loads NCCL or is linked with it.
nvcc_part() {
    case $1 in
    cuda)
        set -- cuda -DDPAR_CUDA_IMPLEMENTATION
        printf '#include "dpar_train.h"\n#include "dpar_cuda.h"\n' > "$work/nvcc_cuda.cu"
        ;;
    loads) set -- loads -DDPAR_IMPLEMENTATION && echo "$whole" > "$work/nvcc_loads.cu" ;;
    linked) set -- linked '-DDPAR_IMPLEMENTATION -DDPAR_NCCL_LINK' && echo "$whole" > "$work/nvcc_linked.cu" ;;
    esac
    nvcc "$DPAR_CUDA_ARCH" -x cu $2 -c "$work/nvcc_$1.cu" -o "$work/nvcc_$1.o"
}
# Links a program's own code with these objects. Without a device it must print that.
nvcc_program() {
    nvcc "$DPAR_CUDA_ARCH" -x cu -DDPAR_APART -c "$(source_of "$1")" -o "$work/nvcc_$1.o"
    for way in loads linked; do
        library=
        [ $way = loads ] || library="-Xlinker $nccl_library,-rpath,${nccl_library%/*},--unresolved-symbols=ignore-in-shared-libs"
        nvcc "$DPAR_CUDA_ARCH" "$work/nvcc_$1.o" "$work/nvcc_$way.o" "$work/nvcc_cuda.o" -o "$work/nvcc_$1_$way" -ldl $library
        CUDA_VISIBLE_DEVICES= timeout 60 "$work/nvcc_$1_$way" > "$work/nvcc_$1.said" 2>&1 && bad=0 || bad=$?
        [ $bad != 0 ] && grep -q 'CUDA driver\|CUDA-capable device' "$work/nvcc_$1.said" ||
            { echo "failed: $1 without a device, NCCL $way: exit $bad"; cat "$work/nvcc_$1.said"; exit 1; }
    done
}
# Compiles everything in one unit, as users do, with the front ends of nvcc and of its host compiler. (kernels.cc
# is such a unit too, and is compiled to machine code.)
nvcc_whole() {
    case $1 in gpu_kernels | strategies) whole= ;; *) whole='-DDPAR_IMPLEMENTATION -DDPAR_CUDA_IMPLEMENTATION' ;; esac
    nvcc "compute_${DPAR_CUDA_ARCH#sm_}" -x cu -Xcompiler -fsyntax-only $whole -c "$(source_of "$1")" -o "$work/none.o"
}
nvcc_build() {
    case $1 in
    kernels | core) nvcc "$DPAR_CUDA_ARCH" -x cu -DDPAR_STATIC "tests/gpu/$1.cc" -o "$bin/nvcc_$1" -ldl ;;
    *_whole) nvcc_whole "${1%_whole}" ;;
    *) nvcc_program "$1" ;;
    esac
}

# ---- build ----

missing="no $([ -n "$nccl_library" ] && echo nvcc || echo 'nccl.h with libnccl.so.2')"
programs=
if has dpar_cuda.h tests/gpu/kernels.cc; then
    programs='gpu_kernels kernels core'
    if [ -n "$cuda" ]; then
        programs="nvcc_kernels nvcc_core $programs"
    else
        skipped 'kernels by nvcc' 'no nvcc'
    fi
else
    skipped kernels 'no dpar_cuda.h or no test of it'
fi
if has dpar_nccl.h tests/gpu/nccl.c; then
    programs="$programs nccl nccl_old"
    if command -v mpicc.openmpi mpirun.openmpi > /dev/null; then programs="nccl_mpi $programs"; else skipped nccl_mpi 'no Open MPI'; fi
    if [ -n "$nccl_library" ] && [ -n "$cuda" ]; then
        programs="real_nccl real_nccl_linked $programs"
    else
        skipped real_nccl "$missing"
    fi
else
    skipped nccl 'no dpar_nccl.h or no test of it'
fi
parts='standins nccl_part cuda_part'
if has dpar_cuda.h && has dpar_nccl.h; then
    if [ -n "$nccl_library" ] && [ -n "$cuda" ]; then
        parts="$parts nvcc_cuda nvcc_loads nvcc_linked"
        for name in $nvcc_programs; do programs="nvcc_$name $programs"; done
        for name in $(some_of nvcc_stencil_whole nvcc_train_gpt_whole nvcc_stencil_whole nvcc_train_gpt_whole | sort -u); do
            programs="$name $programs"
        done
    else
        skipped "$(echo $nvcc_programs) by nvcc" "$missing"
    fi
    for name in $rank_tests; do programs="rank_$name $programs"; done
    for name in $examples; do programs="example_$name $programs"; done
    programs="gpu_halo gpu_bus $programs planet gpt_parts"
fi
case $programs in
*kernels*nccl*) [ ! -e tests/gpu/strategies.cc ] || programs="strategies $programs" ;;
esac
versions='21805 22105'
if [ "${1:-}" = build ]; then
    versions= programs=strategies
    for name in $rank_tests; do programs="$programs rank_$name"; done
    in_pairs prepare standins nccl_part cuda_part
    in_pairs build kernels nccl $programs
    sources > "$bin/sources"
    exit
fi
in_pairs prepare $parts
in_pairs build $programs fake_nccl_test fake_test

# ---- run ----

run() { # name to print, command
    what=$1
    shift
    timeout 100 "$@" > "$said" 2>&1 || { echo "failed: $what, exit $?"; sed '13,$d' "$said"; echo ...; tail -n 10 "$said"; exit 1; }
    grep 'once more$' "$said" || :
    echo "$what: $(tail -n 1 "$said")"
}

# Runs the examples on the stand-ins: bits and losses are compared with one rank (--check), losses also with each
# other, and they must fall. llm RANKS and options.
llm() {
    n=$1
    shift
    run "ddp_llm, $n ranks${*:+, $*}" "$bin/ddp_llm" --ranks "$n" --text LICENSE --steps 12 --check "$@"
    awk '/^step/ { if (!n++) { first = $4 } last = $4 } END { print first, last }' "$said" >> "$work/losses"
}
# Compares train_gpt in device memory with one rank of the host's program in f64. gpt 'options of the model'
# options of the mesh
model=$(sh tests/gpu/train_gpt.sh model)
export GPT_CUBLAS= GPT_MODEL=
gpt() {
    GPT_MODEL=$1
    shift
    run "train_gpt $* on GPUs, the host's in f64" sh tests/gpu/train_gpt.sh "$bin/gpt_host" "$bin/train_gpt" "$bin/gpt_apart" "$@"
}
trace() {
    run "train_gpt $*, its trace" sh tests/gpu/trace.sh "$bin/gpt_host" "$bin/train_gpt" $model --batch 8 --blocks 4 --steps 2 "$@"
}
run_gpt() { # seed
    if [ "$1" = 0 ]; then
        gpt '--gelu --layer-norm --untied' --ranks 4 --pp 2 --tp 2 --sp --schedule zb-h1
        gpt '' --ranks 4 --dp 2 --cp 2 --zero 2
        gpt '--experts 4 --balance 0.01' --ranks 2 --tp 2 --zero 0
        "$bin/train_gpt" $model --ranks 2 --zero 3 --save "$said.half" --every 2 --kill 2:1 > "$said" 2>&1
        [ $? = 1 ] && grep -q 'rank 1 was killed' "$said" || { echo 'failed: a rank that dies'; cat "$said"; exit 1; }
        gpt '' --ranks 2 --tp 2 --zero 0 --resume "$said.half"
        trace --ranks 2 --pp 2 --schedule dualpipev
        return
    fi
    GPT_CUBLAS=$bin/fake_cublas.so FAKE_CUBLAS_SAID=$said.products \
        gpt '--gelu --width 20 --heads 1 --groups 1' --ranks 1 --zero 0 # a head wider than a block of attention
    grep -q '^[1-9][0-9]* products' "$said.products" || { echo 'failed: cuBLAS was not asked'; exit 1; }
    gpt '' --ranks 2 --cp 2 --ulysses
    gpt '--experts 4 --balance 0' --ranks 2 --dp 2 --ep 2 --zero 3 # balance depends on which tokens share a batch
    gpt '--experts 4 --balance 0' --ranks 4 --pp 2 --dp 2 --ep 2 --zero 2 --schedule zb-h1
    trace --ranks 2 --pp 2 --schedule zbv
    trace --ranks 4 --pp 2 --dp 2 --schedule interleaved
    run "train_gpt, bf16" "$bin/train_gpt" $model --ranks 2 --zero 3 --bf16 --check --quiet
    run "train_gpt, all bf16" "$bin/train_gpt" $model --ranks 2 --zero 1 --pure-bf16 --check --quiet
    refused 'gpt: a head is wider' "$bin/train_gpt" $model --width 258 --heads 2
}
refused() { # message, command
    sentence=$1
    shift
    "$@" > "$said" 2>&1
    [ $? = 2 ] && [ "$(wc -l < "$said")" = 1 ] && grep -q "$sentence" "$said" ||
        { echo "failed: not refused: $*"; cat "$said"; exit 1; }
}
run_examples() {
    for n in 1 2 3; do
        run "stencil, $n ranks" "$bin/stencil" --ranks $n --cells 13 --steps 12 --check
    done
    run "gpu_halo, 2 ranks" "$bin/gpu_halo" --ranks 2 --cells 3 --fields 2 --times 1 # exits with 1 if there are more than two kernels
    run "stencil, 2 ranks by a launcher" env MASTER_ADDR=127.0.0.1 MASTER_PORT=29777 sh -c 'export DPAR_SIZE=2 DPAR_JOB=$$
        DPAR_RANK=1 "$0" "$@" & DPAR_RANK=0 "$0" "$@"; bad=$?; wait $! && exit $bad' \
        "$bin/stencil" --cells 9 --steps 5 --rate 0.15 --apart --check
    run "shallow_water, 2 and 3 ranks" sh tests/gpu/shallow_water.sh "$bin/planet" "$bin/shallow_water" '2 3'
    llm 2
    [ "$1" = 0 ] || { llm 1 --zero 2; llm 3 --zero 1; llm 2 --zero 3 --bf16; return; }
    llm 3 --zero 3
    llm 3 --zero 2 --micros 1
    llm 2 --zero 1 --bf16
    refused 'no grid of 9 ranks' "$bin/stencil" --ranks 9 --cells 2
    refused '^stencil: --rate needs a number of ' "$bin/stencil" --rate 0.2
    run "shallow_water, 1 and 4 ranks" sh tests/gpu/shallow_water.sh "$bin/planet" "$bin/shallow_water" '1 4'
    refused 'launcher sets the number of ranks' env DPAR_SIZE=2 DPAR_RANK=0 DPAR_JOB=1 "$bin/shallow_water" --ranks 3
    refused "shallow_water: --rows needs a whole number of 8 to 4096, not '7'" "$bin/shallow_water" --rows 7
    FAKE_CUDA_FAIL=kernel:30 "$bin/shallow_water" --rows 8 --ranks 2 > "$work/said" 2>&1
    [ $? = 1 ] && grep -q '^shallow_water: .*cudaErrorIllegalAddress' "$work/said" || { echo 'failed: a fault that nobody tells'; exit 1; }
    refused 'f32 masters' "$bin/ddp_llm" --bf16
    refused 'multiple of the ranks' "$bin/ddp_llm" --ranks 5
}

# Tests that ranks that a launcher started meet to make a communicator of NCCL. launched WAY LAUNCHER...
launched() {
    way=$1
    shift
    run "nccl, ranks that meet by $way" sh -c '"$@" > "$0" && [ "$(grep -c "of 3 by" "$0")" = 3 ] &&
        echo "3 ranks" || { cat "$0"; exit 1; }' "$said.each" "$@" launched "$way"
}
launchers() {
    if command -v mpiexec.hydra > /dev/null; then
        launched any mpiexec.hydra -n 3 "$bin/nccl" # this node's memory
    else
        skipped 'nccl by a launcher' 'no mpiexec.hydra'
    fi
    [ ! -x "$bin/nccl_mpi" ] || launched mpi env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun.openmpi --oversubscribe -n 3 "$bin/nccl_mpi"
}

# The number after the colon is the seed. 0: streams as late as possible, others as in cuda_runtime.h.
one() {
    name=${1%:*} seed=${1#*:} said=$work/out_$1
    export FAKE_CUDA_SEED=$seed DPAR_NCCL_LIBRARY="$bin/libnccl.so.2"
    case $name in
    fake_test | fake_nccl_test)
        unset FAKE_CUDA_SEED
        run "$name" "$bin/$name"
        ;;
    real_nccl)
        DPAR_NCCL_LIBRARY=$nccl_library run real_nccl "$bin/real_nccl"
        grep -v checks "$said"
        run "symbols of the real NCCL" "$bin/nccl" real "$nccl_library"
        run real_nccl_linked "$bin/real_nccl_linked"
        ;;
    launchers) launchers ;;
    cuda) run cuda.sh sh tests/gpu/cuda_test.sh ;;
    several) run "gpu-check several" sh tests/gpu/several.sh "$bin" ;;
    gpt) run_gpt "$seed" ;;
    examples) run_examples "$seed" ;;
    big) run "kernels, arrays of 2^20 elements and some" "$bin/kernels" big 20 ;; # past 2^31 on a device
    gpu_kernels) run "gpu_kernels, rows compared with the host's" "$bin/gpu_kernels" ;;
    kernels | core | strategies | nccl) run "$name, seed $seed" "$bin/$name" ;;
    nccl_*) DPAR_NCCL_LIBRARY="$bin/${name#nccl_}/libnccl.so.2" run "nccl ${name#nccl_}, seed $seed" "$bin/nccl_old" ;;
    messages) # halos without lent memory
        NEAR_AS=messages FAKE_NCCL_VERSION=22809 run "halos, NCCL 2.28.9" "$bin/strategies" near
        NEAR_AS=messages DPAR_NCCL_LEND=0 run "halos, DPAR_NCCL_LEND=0" "$bin/strategies" near
        ;;
    ring) FAKE_CUDA_GUARD=0 FAKE_NCCL_RING=1 run "nccl, sums as a ring" "$bin/nccl" exact ;;
    strict) # all orders of pipelines, and the other strategies, as if NCCL has one channel
        export FAKE_CUDA_GUARD=0 FAKE_NCCL_STRICT=1
        for n in 1 2 3 4; do run "pipeline, $n ranks, messages in batches" "$bin/pipeline" processes $n; done
        for each in $(half_of $rank_tests); do
            [ "$each" = pipeline ] || run "$each, messages in batches" "$bin/$each" processes $((2 + seed))
        done
        ;;
    *) FAKE_CUDA_GUARD=0 run "$name, seed $seed" "$bin/$name" processes $((2 + seed / 2)) ;; # 2 or 3 ranks
    esac
}
items=
case " $programs " in *' nccl '*) items='nccl:0 nccl:3 nccl_21805:2 nccl_22105:7 ring:7 launchers:0' ;; esac
case " $programs " in
*' planet '*)
    # a push runs every other item, alternately
    for name in $(half_of $rank_tests); do items="$items $name:0 $name:2"; done
    items="$items $(some_of strict:0 strict:2 strict:0 strict:2 | sort -u) $(half_of sequence:4 examples:0 ulysses:4 examples:1 gpt:0 gpt:1 window_attention:4 several:1)" # 4 ranks, of which some have no tokens
    ;;
esac
case " $programs " in *' kernels '*) items="$items kernels:0 kernels:1 core:1 big:0 gpu_kernels:1" ;; esac
case " $programs " in
*' strategies '*)
    seeds='0 7' # a push takes the others alternately
    [ "${DPAR_PARTS_OF:-1}" -gt 1 ] && seeds="$seeds $((${DPAR_PART:-0} % 3 + 1))" || seeds='0 1 2 3 7'
    for each in $seeds; do items="$items strategies:$each"; done
    items="$items messages:2"
    ;;
esac
case " $programs " in *' real_nccl '*) items="$items real_nccl:" ;; esac
items="$items fake_nccl_test: fake_test: cuda:"
in_pairs one $items
k=0
for item in $items; do
    k=$((k + 1))
    cat "$work/said_$k"
done
if [ -e "$work/losses" ]; then # begin at about log(256) = 5.55; bf16 nearly as f32
    awk '!($2 < $1 - 1 && $2 > 1) { print "losses did not fall:", $0; bad = 1 }
        { low = NR == 1 || $2 < low ? $2 : low; high = $2 > high ? $2 : high }
        END { if (!(high - low < 0.02)) { print "losses differ:", low, high; bad = 1 } exit bad }' "$work/losses" || exit 1
fi
left=$(ls "$bin/meet")
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
[ "${1:-}" != keep ] || sources > "$bin/sources"
echo "without a GPU:$(printf ' %s' $programs) fake_test fake_nccl_test"
