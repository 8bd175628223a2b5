#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests MPIs that the distribution does not have, from PyPI (Open MPI 5, MPICH 5, Intel MPI), installed into
# build/mpis: tests/mpi with each, with messages only and by levels, and their launchers. Also torchrun, if
# python3 (or PYTHON) has torch. Names what is not available.
#     tests/compile/newer_mpis.sh [openmpi5|mpich5|intel|torchrun ...]     only these
. tests/compile/common.sh
: "${PYTHON:=python3}"
have "$PYTHON" || { echo "$PYTHON: not found"; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 DPAR_MPI_INSIDES=1
export DPAR_PARTS_OF="${DPAR_PARTS_OF:-4}" DPAR_PART="${DPAR_PART:-3}" DPAR_MPI=0
mkdir -p build/mpis "$work/bin"
mpis=$PWD/build/mpis
PATH=$work/bin:$PATH
try $CC -O1 -D_GNU_SOURCE $reached -I"$DPAR_DIR" -I. -Itests/lib tests/comm/ranks/launch.c -o "$work/launch" -lm

# fetch FOLDER PACKAGES: installs what their wheels put into a prefix (pip --target leaves lib out)
fetch() {
    folder=$mpis/$1
    shift
    [ ! -e "$folder/whole" ] || return 0
    rm -rf "$folder" && mkdir -p "$folder/wheels"
    timeout 600 "$PYTHON" -m pip download -q --no-deps --retries 1 --timeout 20 -d "$folder/wheels" "$@" > "$work/pip" 2>&1 || return 1
    "$PYTHON" - "$folder" << 'EOF' || return 1
import glob, os, sys, zipfile
for wheel in glob.glob(sys.argv[1] + "/wheels/*.whl"):
    with zipfile.ZipFile(wheel) as z:
        for item in z.infolist():
            if ".data/data/" in item.filename and not item.is_dir():
                name = os.path.join(sys.argv[1], item.filename.split(".data/data/", 1)[1])
                os.makedirs(os.path.dirname(name), exist_ok=True)
                with open(name, "wb") as out:
                    out.write(z.read(item))
                os.chmod(name, item.external_attr >> 16 & 0o777)
EOF
    rm -rf "$folder/wheels"
    : > "$folder/whole"
}

command_of() { # name, what it runs
    printf '#!/bin/sh\nexec %s "$@"\n' "$2" > "$work/bin/$1"
    chmod +x "$work/bin/$1"
}

# Intel's own mpicc must be installed in a fixed place; this script prints what it would print.
compiler() { # name, compiler, prefix
    flags="-I$3/include -L$3/lib -Wl,-rpath,$3/lib"
    cat > "$work/bin/$1" << EOF
#!/bin/sh
if [ "\$1" = -show ]; then echo "$2 $flags -lmpi"; else exec $2 $flags "\$@" -lmpi; fi
EOF
    chmod +x "$work/bin/$1"
}

# Checks that its ranks, which dpar_init finds, communicate. Arguments: name, dpar's name of the launcher,
# command
joins() {
    kind=$1 says=$2
    shift 2
    timeout 60 "$@" "$work/launch" join > "$work/said" 2>&1
    [ "$(grep -c "rank [0-2] of 3: adds up ($says" "$work/said")" -eq 3 ] ||
        { echo "failed: $* join"; cat "$work/said"; exit 1; }
    echo "$kind: dpar_init finds its ranks"
}

with() {
    oversubscribe=
    case $1 in
    openmpi5) fetch "$1" 'openmpi>=5,<6' && oversubscribe=--oversubscribe ;;
    mpich5) fetch "$1" 'mpich>=5,<6' ;;
    intel) fetch "$1" impi-rt impi-devel ;;
    torchrun) with_torchrun; return ;;
    *) echo "there is no '$1' here: openmpi5, mpich5, intel, torchrun"; exit 2 ;;
    esac || { echo "$1 of PyPI: not found, skipped"; return; }
    prefix=$mpis/$1
    if [ "$1" = intel ]; then
        compiler mpicc.intel "$CC" "$prefix"
        compiler mpicxx.intel "${CXX:-g++}" "$prefix"
        command_of mpiexec.intel "$prefix/bin/mpiexec.hydra"
    else
        for each in mpicc mpicxx mpiexec; do
            command_of "$each.$1" "$prefix/bin/$each"
        done
    fi
    done=$((done + 1))
    mpiexec."$1" --version | head -n 1
    joins "$1" "$([ "$1" = openmpi5 ] && echo 'Open MPI' || echo Hydra)" "mpiexec.$1" $oversubscribe -n 3
    try env DPAR_MPIS="$1" sh tests/compile/mpi.sh
}

with_torchrun() {
    "$PYTHON" -c 'import torch.distributed.run' 2> /dev/null || { echo 'torchrun: not found, skipped'; return; }
    done=$((done + 1))
    torchrun="$PYTHON -m torch.distributed.run --no-python"
    joins torchrun torchrun $torchrun --nproc-per-node 3
    # as if on two nodes
    for node in 0 1; do
        timeout 60 $torchrun --nnodes 2 --node-rank $node --nproc-per-node 2 --master-addr 127.0.0.1 \
            --master-port 29511 "$work/launch" join > "$work/node_$node" 2>&1 &
    done
    wait
    [ "$(cat "$work"/node_[01] | grep -c 'torchrun says 4 ranks, 2 of them on this node.*dpar_mpi.h.*mpicc')" -eq 4 ] ||
        { echo 'failed: torchrun on two nodes'; cat "$work"/node_[01]; exit 1; }
}

done=0
[ $# -gt 0 ] || set -- openmpi5 mpich5 intel torchrun
for name in "$@"; do
    with "$name"
done
[ "$done" -gt 0 ] || { echo 'newer MPIs and torchrun: not found'; exit 77; }
