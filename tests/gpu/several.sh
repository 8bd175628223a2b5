#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests `tools/gpu-check several` with programs on the stand-ins and an nvidia-smi that lists four devices, or one:
# what it runs, what it prints, and what it reports about steps that fail. several.sh FOLDER (of run.sh's programs)
bin=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/out"
cat > "$work/bin/nvidia-smi" << 'END'
#!/bin/sh
case $* in
topo*) printf '\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\t X \tNV18\tNV18\tSYS\nGPU1\tNV18\t X \tNV18\tNV18\n' ;;
*) for _ in $(seq "$DEVICES"); do echo 'A Card 80GB, 580.1, 9.0, 81559 MiB'; done ;;
esac
END
chmod +x "$work/bin/nvidia-smi"
for name in kernels nccl strategies stencil gpu_halo gpu_bus; do ln -s "$bin/$name" "$work/out/$name"; done
export PATH="$work/bin:$PATH" FAKE_CUDA_GUARD=0 DPAR_CHECK_SMALL=1 LD_LIBRARY_PATH="$bin" # not the real runtime
unset CUDA_VISIBLE_DEVICES
bad=0
fail() { [ $bad = 1 ] || tail -n 40 "$work/said"; echo "failed: $1"; bad=1; }
DEVICES=4 sh tools/gpu-check several "$work/out" > "$work/said" 2>&1 || fail 'several, four devices'
md=$work/out/several.md
[ "$(grep -c '^| \(all_reduce\|all_gather\|reduce_scatter\|all_to_all\|send_recv\)\(, windows\)\{0,1\} | [24] | 64 KiB | [0-9.]* us, [0-9.]* GB/s | [0-9.]* us, [0-9.]* GB/s | [0-9.]* |$' "$md")" = 20 ] ||
    fail 'rows of bandwidths'
[ "$(grep -c '^| [24] | 4^3 x 1 | \(faces\|corners\), \(forward\|adjoint\) | \(memory\|messages\) | [0-9.]* us ([0-9.]*) | [0-9.]* us, [0-9.]* GB/s |$' "$md")" = 16 ] && [ "$(grep -c ' | memory | ' "$md")" = 8 ] ||
    fail 'rows of halos'
grep -q '^### 4 x A Card 80GB, a GPU a rank, 20' "$md" && grep -q '^Driver 580.1, .*NCCL [0-9.]*\.$' "$md" &&
    grep -q 'by: NV18 NV18 SYS (nvidia-smi topo -m)' "$md" || fail 'what it ran on'
grep -q '^    ran | 20..-..-.. | several | nccl | .* | a GPU a rank | fine: 2 of 2 steps$' "$md" || fail 'rows of the record'
# The record accepts the new rows.
mkdir -p "$work/tools" "$work/tests/gpu" "$work/docs/records"
cp tools/gpu-record "$work/tools" && cp docs/gpu.md docs/results.md "$work/docs" && cp docs/records/gpu.md "$work/docs/records"
{ cat tests/gpu/record && sed -n 's/^    \(machine\|ran\) /\1 /p' "$md"; } > "$work/tests/gpu/record"
"$work/tools/gpu-record" && grep -q '^\* 4 x A Card 80GB, 20' "$work/docs/gpu.md" && ! grep -q 'on several GPUs, so' "$work/docs/gpu.md" &&
    grep -q '^| bandwidths between GPUs | 20..-..-.., A Card 80GB |' "$work/docs/records/gpu.md" || fail 'the record with them'
FAKE_NCCL_FAIL=ncclAllReduce:1 DEVICES=2 sh tools/gpu-check several "$work/out" > "$work/said" 2>&1
[ $? = 1 ] && grep -q ' | bandwidths | .* | failed: . of . steps; not: bus-' "$md" || fail 'a step that fails'
DEVICES=1 sh tools/gpu-check several "$work/out" > "$work/said" 2>&1
[ $? = 77 ] && grep -q 'one device, it needs two' "$work/said" || fail 'one device'
[ $bad = 0 ] && echo 'several: 36 rows, steps that fail, one device'
exit $bad
