#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests the predictions of dpar_cost.h on this machine: doctor measures it into a cluster file, plan and the costs of
# collectives and halos read that file, and the calls and programs that they predict are run. Prints predicted and
# measured times and their ratio, where 1 is exact and above 1 means that the prediction is too slow.
#
#     sh bench/loop.sh [short | quick] [two_nodes]      two ranks, each on a core: 2 minutes, with two_nodes 5
#     sh bench/loop.sh page [two_nodes]                 also puts the table into docs/loop.md
#     sh bench/loop.sh calibrate                        only measures the cluster file, 20 s
#
# short is a run of seconds that shows that everything works; its times mean nothing. quick has a third of the rounds.
#
# The files are in build/ or LOOP_OUT: this.cluster is what doctor --cluster measured. this.gpt, this.unet and
# this.water have in addition what share of it the loops of a program reach, fitted to runs of ONE rank at other sizes,
# on every core at once. Those runs are the rows marked C, which are no test. All other rows are of two ranks, and
# nothing was fitted to them.
#
# two_nodes needs mpicc.openmpi and TWO_NODES, a script that runs a program on two nodes ("$TWO_NODES run RANKS_A_NODE
# openmpi PROGRAM ..."), and writes two.cluster.
#
# Times are the smallest of all rounds; a round does each kind of run once. Each rank has a core of its own (taskset).
cd "$(dirname "$0")/.." || exit 1
rounds=6 seconds=8 each=0.4 steps=1 two= only= page=
for word in "$@"; do
    case $word in
    short) rounds=1 seconds=0.2 each=0.002 steps=0 ;;
    quick) rounds=2 ;;
    two_nodes) two=yes ;;
    page) page=yes ;;
    calibrate) only=yes ;;
    -h | --help) sed -n '3,/^cd/s/^# \{0,1\}//p' "bench/${0##*/}"; exit 0 ;;
    *) echo "loop: argument '$word': expected short, quick, page, two_nodes or calibrate (--help)" >&2; exit 2 ;;
    esac
done
: "${CC:=cc}" "${LOOP_OUT:=build}" "${LOOP_BIN:=build}"
out=$LOOP_OUT bin=$LOOP_BIN
mkdir -p "$out"
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
[ -n "$only" ] || [ "$bin" != build ] ||
    make -s build/doctor build/plan build/loop build/shallow_water build/unet build/train_gpt || exit 1
on() { # core, command...
    core=$1
    shift
    if command -v taskset > /dev/null; then taskset -c "$core" "$@"; else "$@"; fi
}
pair() { # command...: runs two ranks and prints the output of rank 0
    DPAR_RANK=1 DPAR_SIZE=2 DPAR_JOB=loop$$ on 1 "$@" > "$work/other" 2>&1 &
    DPAR_RANK=0 DPAR_SIZE=2 DPAR_JOB=loop$$ on 0 "$@" || { cat "$work/other" >&2; return 1; }
    wait
}
apart() { # command...: runs a program of one rank on each of two cores and prints the output of both
    on 1 "$@" > "$work/other" 2>&1 &
    on 0 "$@" && wait && cat "$work/other"
}
apart_nodes() { # command...: runs two ranks on two nodes; Open MPI says which core a rank gets
    "$TWO_NODES" run 1 openmpi sh -c 'command -v taskset > /dev/null && exec taskset -c "$OMPI_COMM_WORLD_RANK" "$@"; exec "$@"' sh "$@"
}

# ---- the machine ----

case $only in yes) [ -x "$bin/doctor" ] || make -s build/doctor || exit 1 ;; esac
rm -f "$out/this.cluster" "$out/two.cluster"
gauge() { pair "$bin/doctor" --join --again --cluster "$out/this.cluster" --seconds $seconds > "$work/gauge"; }
gauge_nodes() { apart_nodes "$work/doctor" --join --again --cluster "$out/two.cluster" --seconds $seconds > "$work/gauge_two"; }
gauge || exit 1
if [ -n "$two" ]; then
    [ -n "${TWO_NODES:-}" ] && command -v mpicc.openmpi > /dev/null || { echo 'loop: two_nodes needs mpicc.openmpi and the script TWO_NODES' >&2; exit 77; }
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    mpi() { # program, source, options
        name=$1 source=$2
        shift 2
        [ "$work/$name" -nt "$source" ] || mpicc.openmpi -O2 -DDPAR_MPI_IMPLEMENTATION "$@" -I. "$source" build/libdpar.a -o "$work/$name" -lm || exit 1
    }
    mpi doctor commands/doctor.c -DDOCTOR_MPI
    gauge_nodes || exit 1
fi
[ -z "$only" ] || { gauge; cat "$work/gauge"; [ -z "$two" ] || { gauge_nodes && cat "$work/gauge_two"; }; exit; }

# ---- what runs: the program's options, and how plan calls it ----

# A job: C or V, key, ranks, mesh, what, options of the program, and for plan the MODEL and --evaluate.
gpt() { # rank kind, ranks, mesh, options of the mesh, strategy, width, length
    echo "$1|gpt|$2|$3|train_gpt $6 wide, $7 tokens|$4 --width $6 --length $7 --batch 4|llama:layers=4,hidden=$6,heads=4,kv_heads=4,ffn=$((4 * $6)),vocab=256,seq=$7,tied=1,biases=-1,element=4,attention=flash,stack=core|$5"
}
unet() { # kind, ranks, mesh, options, strategy, columns, rows
    echo "$1|unet|$2|$3|unet $7 x $6|$4 --size $6x$7|unet:hidden=4,levels=3,blocks_per_level=1,image=$7x$6,channels=3,out_channels=1,stack=core,element=4|$5"
}
# Three fields of f64 and three exchanges in a step, as wide as the narrowest circle needs along the circles and one
# cell wide across them. Each of three stages reads three fields and writes three, which is 144 bytes for a cell.
water() { # kind, ranks, mesh, options, strategy, rows
    echo "$1|water|$2|$3|shallow_water $6 x $((2 * $6))|$4 --rows $6|grid:$6x$((2 * $6)),fields=3,halo=$7,element=8,bytes_per_cell=144,flops_per_cell=1|$5"
}
{
    gpt C 1 1 '--ranks 1' mbs=2,m=2 48 64
    gpt C 1 1 '--ranks 1' mbs=2,m=2 96 64
    gpt C 1 1 '--ranks 1' mbs=2,m=2 64 32
    gpt C 1 1 '--ranks 1' mbs=2,m=2 64 96
    gpt V 2 'dp 2' '--dp 2 --zero 0' dp=2,zero=0,mbs=2,m=1 64 64
    gpt V 2 'tp 2' '--tp 2' tp=2,mbs=2,m=2 64 64
    gpt V 2 'pp 2' '--pp 2' pp=2,mbs=2,m=2 64 64
    unet C 1 1 '--tiles 1x1' mbs=1,m=1 128 64
    unet C 1 1 '--tiles 1x1' mbs=1,m=1 160 80
    unet C 1 1 '--tiles 1x1' mbs=1,m=1 192 48
    unet V 2 1x2 '--tiles 1x2' tiles=1x2,mbs=1,m=1 192 96
    unet V 2 2x1 '--tiles 2x1' tiles=2x1,mbs=1,m=1 192 96
    unet V 2 'dp 2' '--tiles 1x1 --dp 2' dp=2,zero=0,overlap=none,mbs=1,m=1 192 96
    water C 1 1 '--grid 1x1' mbs=1,m=1 48 1
    water C 1 1 '--grid 1x1' mbs=1,m=1 80 1
    water V 2 2x1 '--grid 2x1' tiles=2x1,mbs=1,m=1 64 3
    water V 2 1x2 '--grid 1x2' tiles=1x2,mbs=1,m=1 64 63
    water V 2 2x1 '--grid 2x1' tiles=2x1,mbs=1,m=1 96 3
} > "$work/jobs"
app() { case $1 in gpt) echo train_gpt ;; water) echo shallow_water ;; *) echo unet ;; esac; }
long() { # program: the option for the number of steps
    case $1$steps in
    gpt1) echo --steps 40 ;; gpt0) echo --steps 4 ;;
    unet1) echo --steps 30 ;; unet0) echo --steps 2 ;;
    water1) echo --days 3 ;; water0) echo --days 0.05 ;;
    esac
}
best() { # reads the output of ranks and prints the slowest of their best steps
    awk '{ for (i = 1; i <= NF; i++) {
               if ($i == "best" && $(i + 1) == "step" && $(i + 2) + 0 > most) most = $(i + 2) + 0
               if ($i == "at" && $(i + 1) ~ /^best/ && $(i - 1) / 1e3 > most) most = $(i - 1) / 1e3 } }
         END { if (most > 0) printf "%.6g\n", most; else exit 1 }'
}

# ---- rounds ----

keep() { # row, seconds: adds a time
    echo "$2" >> "$work/row.$1"
}
run_jobs() { # kinds to run, how to run V, the folder of the programs, the suffix of rows
    row=0
    while IFS='|' read -r kind key ranks mesh what options model strategy; do
        row=$((row + 1))
        case $1 in *$kind*) ;; *) continue ;; esac
        if [ "$kind" = C ]; then how=apart; else how=$2; fi
        $how "$3/$(app "$key")" $options $(long "$key") < /dev/null > "$work/said" 2> "$work/err" && t=$(best < "$work/said") ||
            { echo "loop: $what on $mesh failed:" >&2; cat "$work/said" "$work/err" >&2; exit 1; }
        keep "$row$4" "$t"
    done < "$work/jobs"
}
least() { sort -g "$1" | head -n 1; }

if [ -n "$two" ]; then
    mpi loop bench/loop.c -DUSE_MPI
    for each_app in shallow_water unet train_gpt; do mpi $each_app apps/$each_app.c -DUSE_MPI; done
fi
round=0
while [ $round -lt $rounds ]; do
    round=$((round + 1))
    gauge || exit 1
    [ -z "$two" ] || gauge_nodes || exit 1
    pair "$bin/loop" calls "$out/this.cluster" "$each" >> "$work/calls" || exit 1
    run_jobs CV pair "$bin" . || exit 1
    [ -z "$two" ] || { apart_nodes "$work/loop" calls "$out/two.cluster" "$each" >> "$work/calls" &&
        run_jobs V apart_nodes "$work" .two; } || exit 1
done

cat "$work"/gauge* >&2

# ---- what is predicted ----

fitted() { # key, constants: fits them to the rows marked C of a program, into a cluster file of its own
    row=0
    set -- "$1" "$2"
    while IFS='|' read -r kind key ranks mesh what options model strategy; do
        row=$((row + 1))
        [ "$kind$key" = "C$1" ] && set -- "$@" "$model|$strategy|$(least "$work/row.$row.")"
    done < "$work/jobs"
    key=$1 names=$2
    shift 2
    "$bin/loop" fit "$out/this.cluster" "$names" "$@" > "$work/fit" 2> "$work/off" || { cat "$work/off" >&2; exit 1; }
    cat "$out/this.cluster" "$work/fit" > "$out/this.$key"
    # both nodes have the same cores, so that the rates to which the fit is relative are the same
    [ -z "$two" ] || { cat "$out/two.cluster" && grep -e '^stream' -e '^tflops' "$out/this.cluster" && cat "$work/fit"; } > "$out/two.$key"
    sed "s/^/$key: /" "$work/off" >&2
}
fitted gpt 'gemm attention hbm' && fitted unet 'gemm hbm' && fitted water hbm || exit 1

predict() { # cluster file, model, strategy, ranks
    "$bin/plan" "$2" --cluster "$1" --gpus "$4" --precision fp32 --evaluate "$3" --json --quiet |
        sed -n 's/.*"time_s": {.*"total": \([-+0-9.e]*\)}.*/\1/p'
}
table() { # suffix of rows, cluster files' first name, nodes
    row=0
    while IFS='|' read -r kind key ranks mesh what options model strategy; do
        row=$((row + 1))
        [ -f "$work/row.$row$1" ] || continue
        echo "$kind|$what|$mesh|$3|$(predict "$out/$2.$key" "$model" "$strategy" "$ranks")|$(least "$work/row.$row$1")"
    done < "$work/jobs"
}
{
    { "$bin/loop" price "$out/this.cluster" && { [ -z "$two" ] || "$bin/loop" price "$out/two.cluster"; } ||
        exit 1; } | awk -F '|' -v said="$work/calls" '
        BEGIN { while ((getline line < said) > 0) { split(line, f, "|"); k = f[1] FS f[2] FS f[3]
                if (!(k in t) || f[4] + 0 < t[k]) t[k] = f[4] + 0 } }
        { k = $1 FS $2 FS $3; printf "V|%s|%s|%s\n", k, $4, t[k] }'
    table . this 1
    [ -z "$two" ] || table .two two 2
} > "$work/table"
awk -F '|' '
    function time_of(s) { return s < 1e-3 ? sprintf("%8.2f us", s * 1e6) : sprintf("%8.3f ms", s * 1e3) }
    BEGIN { printf "  %-28s %-6s %5s %11s %11s  %s\n", "what", "mesh", "nodes", "predicted", "measured", "ratio" }
    $5 + 0 <= 0 || $6 + 0 <= 0 { print "no time: " $0; bad = 1; next }
    {
        ratio = $5 / $6
        printf "%s %-28s %-6s %5d %11s %11s  %.2f\n", $1 == "C" ? "C" : " ", $2, $3, $4, time_of($5), time_of($6), ratio
        if ($1 != "C") { off[++n] = ratio > 1 ? ratio - 1 : 1 - ratio; if (off[n] >= off[worst]) { worst = n; named = $2 " on " $3 } within += off[n] <= 0.2 }
    }
    END {
        for (i = 1; i <= n; i++) for (k = i + 1; k <= n; k++) if (off[k] < off[i]) { t = off[i]; off[i] = off[k]; off[k] = t }
        printf "%d rows (C apart), %d within 20 %%: median off by %.1f %%, worst %.1f %% (%s)\n", n, within,
            100 * (n % 2 ? off[(n + 1) / 2] : (off[n / 2] + off[n / 2 + 1]) / 2), 100 * off[n], named
        exit bad || n == 0
    }' "$work/table" > "$work/rows"
code=$?
cat "$work/rows"
[ -n "$page" ] && [ $code -eq 0 ] || exit $code
{
    sed '/^<!-- table: /q' docs/loop.md
    echo
    echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2> /dev/null | head -n 1), $(getconf _NPROCESSORS_ONLN) cores, $("$CC" --version | head -n 1), -O2, $(date +%Y-%m-%d)."
    echo
    sed 's/^/    /' "$work/rows"
    echo
    sed -n '/^<!-- end of the table/,$p' docs/loop.md
} > "$work/page" && cp "$work/page" docs/loop.md
