#!/bin/sh
# Packs tests/gpu/check.sh with all that it runs: `make gpu-check-bundle`. Nothing is built where it is unpacked, and of that
# machine's libraries only the C library is used (Debian 12's or later).
#
#     bundle.sh PLUGIN OUT.tar.gz         PLUGIN is packed as paramd-cuda.so
set -eu
plugin=$1 out=$2
largest=$((40 << 20))

here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
to=$here/paramd-gpu-check
mkdir -p "$to/lib" "$to/python"

for f in paramd libparamd.so tests/device/test_device tests/device/test_rules tests/device/test_program \
    tests/device/test_cuda_program tests/device/test_sums tests/unit/test_store tests/system/test_same_host \
    tests/gpu/bench_gpu; do
    strip --strip-unneeded -o "$to/$(basename "$f")" "build/$f"
done
strip --strip-unneeded -o "$to/paramd-cuda.so" "$plugin"
# What they are linked with, but for the C library, which must fit the machine's loader.
ldd "$to/paramd" "$to/libparamd.so" "$to/bench_gpu" | awk '$3 ~ "^/" {print $3}' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread)\.so' | xargs cp -L -t "$to/lib"
cp -r api/python/paramd "$to/python/"
rm -rf "$to/python/paramd/__pycache__"
cp tests/gpu/check.sh tests/gpu/train.py "$to/"
tar -C "$here" --owner=0 --group=0 -czf "$out" paramd-gpu-check

size=$(stat -c %s "$out")
if [ "$size" -gt $largest ]; then
    echo "$out has $size bytes, more than $largest" >&2
    exit 1
fi
echo "$out: $((size / 1000)) kB; unpack it where the GPU is, and run paramd-gpu-check/check.sh"
