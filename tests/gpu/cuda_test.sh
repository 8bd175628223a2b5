#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests what cuda.sh finds in the layouts of installers, made of empty files, with a script as nvcc that prints what
# theirs prints (`nvcc --dryrun`), and without a wheel.
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
work=$(cd "$work" && pwd -P)
unset NVCC DPAR_NCCL_HOME DPAR_NCCL_LIBRARY
bad=0 layouts=0
mkdir "$work/path"
printf '#!/bin/sh\nexit 1\n' > "$work/path/python3"
chmod +x "$work/path/python3"
PATH=$work/path:$PATH

files() { for file in "$@"; do mkdir -p "$work/${file%/*}" && : > "$work/$file"; done; }
compiler() { # path, folder of headers, folder of libraries: relative to its toolkit
    mkdir -p "$work/${1%/*}"
    cat > "$work/$1" << NVCC
#!/bin/sh
[ "\$1" = --dryrun ] || exit 9
{
    echo '#\$ _SPACE_= '
    echo '#\$ _HERE_=$work/${1%/*}'
    echo '#\$ TOP=$work/${1%/*}/..'
    [ -z "$2" ] || echo '#\$ INCLUDES="-I$work/${1%/*}/../$2"  '
    echo '#\$ SYSTEM_INCLUDES="-isystem" "$work/${1%/*}/../$2/cccl"  '
    [ -z "$3" ] || echo '#\$ LIBRARIES=  "-L$work/${1%/*}/../$3/stubs" "-L$work/${1%/*}/../$3"'
    echo '#\$ rm -f a.out'
} >&2
NVCC
    chmod +x "$work/$1"
}
found() { # layout, nvcc, expected lines NAME=...
    layouts=$((layouts + 1))
    (
        NVCC=$work/$2
        . tests/gpu/cuda.sh
        for name in cuda cuda_headers cuda_folders nccl nccl_library; do
            eval "echo $name=\$$name"
        done
    ) > "$work/said" 2>&1
    printf '%s\n' "$3" | sed "s|@|$work/|g" | diff - "$work/said" || { echo "$1: other than expected"; bad=1; }
}

# NVIDIA's installer: one folder, to which its link points; a wheel's NCCL, without lib/libnccl.so
files cuda-13.0/include/cuda_runtime.h cuda-13.0/lib64/libcudart.so cuda-13.0/lib64/stubs/libcuda.so \
    cuda-13.0/lib64/libcublas.so wheel/include/nccl.h wheel/lib/libnccl.so.2
compiler cuda-13.0/bin/nvcc include lib64
ln -s cuda-13.0 "$work/cuda"
DPAR_NCCL_HOME=$work/wheel
export DPAR_NCCL_HOME
found toolkit cuda/bin/nvcc 'cuda=@cuda-13.0
cuda_headers=-isystem @cuda-13.0/include
cuda_folders=@cuda-13.0/lib64
nccl=@wheel
nccl_library=@wheel/lib/libnccl.so.2'

# conda: headers and libraries below targets; NCCL in the environment's own include and lib
files conda/targets/x86_64-linux/include/cuda_runtime.h conda/targets/x86_64-linux/lib/libcudart.so \
    conda/targets/x86_64-linux/lib/stubs/libcuda.so conda/include/nccl.h conda/lib/libnccl.so.2
compiler conda/bin/nvcc targets/x86_64-linux/include targets/x86_64-linux/lib
unset DPAR_NCCL_HOME
found conda conda/bin/nvcc 'cuda=@conda
cuda_headers=-isystem @conda/targets/x86_64-linux/include
cuda_folders=@conda/targets/x86_64-linux/lib
nccl=@conda
nccl_library=@conda/lib/libnccl.so.2'

# the HPC SDK: nvcc is a script that begins the one of a version; cuBLAS and NCCL have folders of their own
files sdk/cuda/12.6/targets/sbsa-linux/include/cuda_runtime.h sdk/cuda/12.6/targets/sbsa-linux/lib/libcudart.so \
    sdk/math_libs/12.6/lib64/libcublas.so sdk/comm_libs/nccl/include/nccl.h sdk/comm_libs/nccl/lib/libnccl.so.2
compiler sdk/cuda/12.6/bin/nvcc targets/sbsa-linux/include targets/sbsa-linux/lib
mkdir -p "$work/sdk/compilers/bin"
printf '#!/bin/sh\nexec "%s/cuda/12.6/bin/nvcc" "$@"\n' "$work/sdk" > "$work/sdk/compilers/bin/nvcc"
chmod +x "$work/sdk/compilers/bin/nvcc"
found 'HPC SDK' sdk/compilers/bin/nvcc 'cuda=@sdk/cuda/12.6
cuda_headers=-isystem @sdk/cuda/12.6/targets/sbsa-linux/include
cuda_folders=@sdk/cuda/12.6/targets/sbsa-linux/lib @sdk/math_libs/12.6/lib64
nccl=@sdk/cuda/12.6/../../comm_libs/nccl
nccl_library=@sdk/cuda/12.6/../../comm_libs/nccl/lib/libnccl.so.2'

# a distribution's: headers and libraries where each compiler looks on its own
compiler debian/bin/nvcc '' ''
files nccl/include/nccl.h "nccl/lib/aarch64-linux-gnu/libnccl.so.2"
DPAR_NCCL_HOME=$work/nccl
export DPAR_NCCL_HOME
found distribution debian/bin/nvcc 'cuda=@debian
cuda_headers=
cuda_folders=
nccl=@nccl
nccl_library=@nccl/lib/aarch64-linux-gnu/libnccl.so.2'

# An nvcc that prints nothing: the folder above its own is used.
printf '#!/bin/sh\nexit 1\n' > "$work/cuda-13.0/bin/nvcc"
found silent cuda/bin/nvcc 'cuda=@cuda-13.0
cuda_headers=-isystem @cuda-13.0/include
cuda_folders=@cuda-13.0/lib64
nccl=@nccl
nccl_library=@nccl/lib/aarch64-linux-gnu/libnccl.so.2'

[ $bad = 0 ] && echo "$layouts layouts of CUDA and NCCL"
exit $bad
