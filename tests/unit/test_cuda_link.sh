#!/bin/sh
# What the CUDA plug-in asks of a machine: libc, and nothing of CUDA until it is opened. Counts as skipped where there is no
# nvcc to build it.

cd "$(dirname "$0")/../.." || exit 2
so=build/paramd-cuda.so
passed=0
failed=0

fact() { # NAME, then a command that must succeed
    name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else echo "FAILED $name"; failed=$((failed + 1)); fi
}

needs_libc_only() {
    left=$(readelf -d "$so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -v -e '^libc\.so' -e '^ld-linux' -e '^libm\.so')
    [ -z "$left" ] || { echo "$left"; false; }
}
has_no_driver_symbol() { ! nm -D --undefined-only "$so" | grep -E ' (cu[A-Z]|nccl|nvrtc|_ZS|__cxa_throw|__gxx)'; }
shows_one_symbol() { [ "$(nm -D --defined-only "$so" | awk '{print $3}')" = paramd_device_plugin ]; }
ptx_is_one_below_100() {
    for n in 80 90; do cat build/obj/release-*/cusim/compute_$n.ptx | grep -v -e '^//' -e '^\.target' >build/compute_$n.text || return 1; done
    cmp build/compute_80.text build/compute_90.text && rm build/compute_80.text build/compute_90.text
}
programs_need_no_cuda() { ! readelf -d build/paramd build/libparamd.so | grep NEEDED | grep -i -e cuda -e nvrtc -e nccl; }

if [ ! -e "$so" ]; then
    echo "skipped: it needs nvcc: package cuda-nvcc-13-0, see README.md"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
fact "the plug-in needs libc only" needs_libc_only
fact "the plug-in takes no symbol of the driver, of NVRTC, of NCCL or of libstdc++" has_no_driver_symbol
fact "the plug-in shows one symbol" shows_one_symbol
if [ -e build/paramd-ptx.so ]; then fact "what is compiled for sm_80 is what is compiled for sm_90" ptx_is_one_below_100; fi
fact "neither the daemon nor the library needs CUDA" programs_need_no_cuda
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
