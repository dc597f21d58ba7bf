#!/bin/sh
# All that is to be seen on a machine with a GPU, in at most 320 seconds. `make gpu-check-bundle` packs it with what it runs.
#
#     check.sh [LOG]        the log, with all that each step said [check.log beside this script]
#
# Each step has a hard limit, after which it is killed and has failed; no step keeps a later one from running. A step that this
# machine cannot take (no compute-sanitizer, no numpy, no NCCL) is skipped, with the reason. Says a table, and in the end
# "N passed, N failed, N skipped"; status 1 when a step failed. PYTHON names another Python than python3;
# PARAMD_CHECK_REHEARSAL=1 takes a little of each step, to try the script itself (tests/system/test_gpu_check.py).
here=$(cd "$(dirname "$0")" && pwd)
log=${1:-$here/check.log}
most=320

if [ "${PARAMD_CHECK_REHEARSAL:-}" = "" ]; then
    elements=$((256 << 20)) trained=200 of_device= of_rules=gpu of_program=gpu of_store= of_memcheck=
else
    elements=$((128 << 10)) trained=10 of_device=rows of_rules=f64 of_program=refuses of_store=pull of_memcheck=aligned
fi

# name | limit in seconds | command
steps() {
    cat <<'END'
machine|5|machine
every device's suite|30|suite ./test_device $of_device
rules by their formulas|20|suite ./test_rules $of_rules
texts by the rules|15|suite ./test_program $of_program
compiled texts|15|suite ./test_cuda_program
the store's suite|20|suite ./test_store $of_store
mailboxes|30|suite ./test_same_host mailbox
sums by NCCL|20|nccl
memcheck|35|sanitize memcheck ./test_device $of_memcheck
racecheck|30|sanitize racecheck ./test_device rows
racecheck of statistics|10|sanitize racecheck ./test_device stat
initcheck|30|sanitize initcheck ./test_program $of_program
work of 256 Mi elements|30|./bench_gpu $elements
work of 64 Mi elements|10|./bench_gpu $((elements / 4 > 65536 ? elements / 4 : 65536))
training in a daemon|20|train
END
}

# ---- what a step is ----

skip() {
    echo "$*"
    exit 77
}

machine() {
    uname -sr
    command -v nvidia-smi >/dev/null || skip "no nvidia-smi"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
}

# The daemon and the suites open paramd-cuda.so beside themselves; a suite opens the stand-in's unless it is told. What it
# leaves out on a GPU it names; when nothing is left the first of these reasons is the step's.
suite() {
    PARAMD_TEST_PLUGIN=$here/paramd-cuda.so "$@"
    status=$?
    ! tail -n 1 "$said" | grep -q '^0 passed, 0 failed' || skip "$(sed -n 's/^skipped [a-z0-9_]*: //p' "$said" | head -n 1)"
    return $status
}

# In a communicator of one. NCCL of pip lies where the loader does not look.
nccl() {
    of_pip=$("${PYTHON:-python3}" -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)/lib/libnccl.so.2
    [ "${PARAMD_NCCL:-}" != "" ] || [ ! -r "$of_pip" ] || export PARAMD_NCCL="$of_pip"
    suite ./test_sums && suite ./test_same_host a_store_of_type_nccl
}

# Each piece of memory is an allocation of its own, or nothing would be seen of what goes past one.
sanitize() {
    tool=$1
    shift
    program=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) || skip "no compute-sanitizer"
    PARAMD_TEST_PLUGIN=$here/paramd-cuda.so PARAMD_TEST_CHUNK=1 "$program" --tool "$tool" --error-exitcode 9 "$@"
    status=$?
    ! grep -q 'Device not supported' "$said" || skip "compute-sanitizer: Device not supported"
    return $status
}

train() { PYTHONPATH=$here/python PYTHONUNBUFFERED=1 "${PYTHON:-python3}" train.py --steps $trained; }

# ---- one step, when this script is run for it ----

if [ "${PARAMD_CHECK_STEP:-}" != "" ]; then
    eval "$PARAMD_CHECK_STEP"
    exit
fi

# ---- all of them ----

sum=0
for limit in $(steps | cut -d'|' -f2); do sum=$((sum + limit)); done
if [ $sum -gt $most ]; then
    echo "the limits of the steps come to $sum s, more than $most" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$here" || exit 2
: >"$log" || exit 2
# What the bundle brings comes first, then what the machine needs to find its driver.
LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
PARAMD_CUDA_PLUGIN=$here/paramd-cuda.so
PARAMD_DAEMON=$here/paramd
PARAMD_LIBRARY=$here/libparamd.so
export LD_LIBRARY_PATH PARAMD_CUDA_PLUGIN PARAMD_DAEMON PARAMD_LIBRARY

say() { echo "$*" | tee -a "$log"; }

said=$work/said      # the output of the step
passed=0 failed=0 skipped=0
steps >"$work/steps"
while IFS='|' read -r name limit command <&3; do
    echo "==== $name: $command (at most $limit s)" >>"$log"
    began=$(date +%s)
    said=$said PARAMD_CHECK_STEP=$command timeout -s KILL "$limit" sh "$here/check.sh" >"$said" 2>&1 3<&-
    status=$?
    seconds=$(($(date +%s) - began))
    cat "$said" >>"$log"
    last=$(grep -v '^ *$' "$said" | tail -n 1)
    case $status in
    0) result=passed passed=$((passed + 1)) ;;
    77) result=skipped skipped=$((skipped + 1)) ;;
    137) result=FAILED failed=$((failed + 1)) last="killed; the limit is $limit s" ;;
    *) result=FAILED failed=$((failed + 1)) last="status $status; $last" ;;
    esac
    printf '%-24s %-8s %4s s  %s\n' "$name" "$result" "$seconds" "$last" | tee -a "$work/table"
done 3<"$work/steps"

{
    echo "==== in short"
    cat "$work/table"
} >>"$log"
grep -E '^f32, |  G[12] ' "$log" >"$work/goals" && { echo; cat "$work/goals"; } | tee -a "$log"
say "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
