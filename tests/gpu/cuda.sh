# SPDX-License-Identifier: MIT-0
# Finds CUDA and NCCL; sourced by tests/gpu/run.sh and tools/gpu-check. Sets these, empty if not found:
#     NVCC            the caller's, otherwise that in the PATH, otherwise that in /usr/local/cuda
#     cuda            the folder of its toolkit
#     cuda_headers    flags for a C compiler that finds cuda_runtime.h
#     cuda_folders    the folders with libcudart.so and libcublas.so
#     cuda_link       flags that link with these libraries and find them at run time
#     nccl            a folder with include/nccl.h: DPAR_NCCL_HOME, a wheel, in the toolkit or beside it, the system's
#     nccl_headers    flags that find it
#     nccl_library    libnccl.so.2 of that folder
# nvcc itself prints where its headers and libraries are, because conda and the HPC SDK have them in other places
# than the toolkit's installer, and nvcc may be a script that starts another one.
those_with() { # file, folders...: prints the folders that contain the file, each once
    file=$1 found=
    shift
    for folder in "$@"; do
        folder=$(cd "$folder" 2> /dev/null && pwd -P) || continue
        case " $found " in
        *" $folder "*) ;;
        *) [ ! -e "$folder/$file" ] || found="$found${found:+ }$folder" ;;
        esac
    done
    echo "$found"
}
headers_in() { # folders; not /usr/include, which would hide C's headers from those of C++ and is found anyway
    for folder in "$@"; do
        [ "$folder" = /usr/include ] || printf '%s' "-isystem $folder "
    done
}
nvcc_says() { # a name, the prefix of each value
    printf '%s\n' "$cuda_said" | sed -n "s/^#[\$] $1= *//p" | tr -d '"' | tr ' ' '\n' | sed -n "s/^$2\(.\)/\1/p"
}
find_cuda() {
    for one in "${NVCC:-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc ''; do
        NVCC=$one
        [ ! -x "$one" ] || break
    done
    cuda='' cuda_headers='' cuda_folders='' cuda_link=''
    [ -n "$NVCC" ] || return 0
    cuda_said=$("$NVCC" --dryrun -x cu -c /dev/null -o /dev/null 2>&1)
    cuda=$(those_with bin $(nvcc_says TOP ''))
    [ -n "$cuda" ] || cuda=$(dirname "$(dirname "$(readlink -f "$NVCC")")")
    cuda_headers=$(headers_in $(those_with cuda_runtime.h $(nvcc_says INCLUDES -I) "$cuda/include"))
    cuda_folders=$(those_with libcudart.so $(nvcc_says LIBRARIES -L) "$cuda/lib64" "$cuda/lib")
    for folder in $(those_with libcublas.so "$cuda/../../math_libs/$(basename "$cuda")/lib64" "$cuda/../math_libs/lib64"); do
        cuda_folders="$cuda_folders $folder"
    done
    for folder in $cuda_folders; do cuda_link="$cuda_link-L$folder -Wl,-rpath,$folder "; done
}
find_nccl() {
    nccl='' nccl_headers='' nccl_library=''
    for folder in "${DPAR_NCCL_HOME:-}" \
        "$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2> /dev/null)" \
        ${cuda:+"$cuda" "$cuda/../../comm_libs/nccl" "$cuda/../comm_libs/nccl"} /usr /usr/local; do
        [ -n "$folder" ] && [ -e "$folder/include/nccl.h" ] || continue
        : "${nccl:=$folder}" # a folder without a library, if none has both
        for file in "$folder"/lib/libnccl.so.2 "$folder"/lib64/libnccl.so.2 "$folder"/lib/*-linux-gnu/libnccl.so.2; do
            [ -z "$nccl_library" ] && [ -e "$file" ] && nccl=$folder && nccl_library=$file
        done
        [ -z "$nccl_library" ] || break
    done
    [ -z "$nccl" ] || nccl_headers=$(headers_in "$nccl/include")
}
find_cuda
find_nccl
