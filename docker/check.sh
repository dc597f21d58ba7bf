#!/usr/bin/env bash
# Builds the image and runs it for real, with podman: health, push and pull from outside with the token, no root, a root
# that cannot be written, the end within 10 s. `docker/check.sh --compose` has the demo's four trainers learn as well.
# Ends with "N passed, N failed".
#
# It needs podman and runc (Debian: podman buildah runc; for --compose podman-compose and netavark aardvark-dns), curl and
# python3, and where no image can be pulled debootstrap, as root. NETWORK=bridge publishes the ports; the standard, host,
# leaves the machine's firewall alone.
set -eu
cd "$(dirname "$0")/.."

IMAGE=paramd-check NAME=paramd-check-$$ BASE=docker.io/library/debian:bookworm-slim
NETWORK=${NETWORK:-host}
WORK=$(mktemp -d)
passed=0 failed=0

finish() {
    podman rm -f -t 0 "$NAME" >/dev/null 2>&1 || true
    rm -rf "$WORK"
}
trap finish EXIT

# check WHAT COMMAND...: the fact holds when the command succeeds.
check() {
    local what=$1
    shift
    if "$@" >"$WORK/out" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $what"
    else
        failed=$((failed + 1))
        echo "FAILED  $what"
        sed 's/^/        /' "$WORK/out"
    fi
}

status_is() { # STATUS COMMAND...
    local want=$1 got=0
    shift
    "$@" || got=$?
    echo "ended with $got, not $want"
    [ "$got" = "$want" ]
}

says() { # WORDS COMMAND...
    local words=$1
    shift
    "$@" 2>&1 | tee "$WORK/said" || true
    grep -qF -- "$words" "$WORK/said"
}

prints() { # WORDS COMMAND...: these and no others
    local words=$1 said
    shift
    said=$("$@") || true
    echo "it printed '$said'"
    [ "$said" = "$words" ]
}

# ---- podman as it can be here ---------------------------------------------------------------------------------------

for tool in podman curl python3; do
    command -v "$tool" >/dev/null || { echo "$tool is not here: apt-get install podman buildah runc curl python3" >&2; exit 2; }
done

if ! podman image exists "$BASE" && ! podman pull -q "$BASE"; then
    echo "no image can be pulled: the base is made by debootstrap"
    mirror=$(grep -rhoE 'https?://[^ ]*debian\.org/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -1 || true)
    debootstrap --variant=minbase bookworm "$WORK/rootfs" "${MIRROR:-${mirror:-http://deb.debian.org/debian}}" >"$WORK/debootstrap.log"
    tar -C "$WORK/rootfs" -c . | podman import -q - "$BASE"
fi

# Where the limits of the machine cannot be raised, or crun does not take its cgroups, podman's own settings fail.
if ! podman run --rm "$BASE" true 2>"$WORK/why" && [ -z "${CONTAINERS_CONF:-}" ]; then
    printf '[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]\n[engine]\nruntime = "runc"\n' >"$WORK/containers.conf"
    export CONTAINERS_CONF=$WORK/containers.conf
    podman run --rm "$BASE" true || { cat "$WORK/why" >&2; exit 2; }
fi

build() { podman build --format docker --network host -q -f docker/Dockerfile --target "$1" -t "$2" . >/dev/null; }
build daemon "$IMAGE"

# ---- one daemon -----------------------------------------------------------------------------------------------------

head -c 24 /dev/urandom | base64 >"$WORK/token"
chmod 711 "$WORK"
chmod 644 "$WORK/token"
TOKEN=$(cat "$WORK/token")

if [ "$NETWORK" = host ]; then
    read -r data bulk admin probe < <(python3 -c 'import socket
s = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*(x.getsockname()[1] for x in s))')
    doors=(--network host -e "PARAMD_LISTEN=tcp://127.0.0.1:$data" -e "PARAMD_BULK=tcp://127.0.0.1:$bulk"
           -e "PARAMD_ADMIN=127.0.0.1:$admin" -e "PARAMD_PROBE=127.0.0.1:$probe" -e "PARAMD_URL=tcp://127.0.0.1:$data")
else
    data=7700 bulk=7701 admin=7780 probe=7781
    doors=(--network "$NETWORK")
    for port in $data $bulk $admin $probe; do doors+=(-p "127.0.0.1:$port:$port"); done
fi
URL=tcp://127.0.0.1:$data
hardened=(--read-only --cap-drop all --security-opt no-new-privileges)

# A second container, outside the first: paramctl with the token.
ctl() {
    podman run --rm -i "${hardened[@]}" --network host -v "$WORK:/data:ro" -e "PARAMD_URL=$URL" -e PARAMD_TOKEN_FILE=/data/token \
        --entrypoint paramctl "$IMAGE" "$@"
}
without_token() {
    podman run --rm "${hardened[@]}" --network host -e "PARAMD_URL=$URL" -e PARAMD_TOKEN_FILE= --entrypoint paramctl "$IMAGE" "$@"
}
http() { curl -s -o "$WORK/body" -w '%{http_code}\n' "$@"; }

check "it does not start without the token that protects it" status_is 2 podman run --rm "${hardened[@]}" "$IMAGE"
check "its settings can be looked at" says "tcp://0.0.0.0:7700" podman run --rm "${hardened[@]}" -v "$WORK/token:/run/secrets/paramd-token:ro" "$IMAGE" --print-config

podman run -d --name "$NAME" "${hardened[@]}" "${doors[@]}" -v "$WORK/token:/run/secrets/paramd-token:ro" "$IMAGE" >/dev/null
for _ in $(seq 100); do
    podman logs "$NAME" 2>&1 | grep -q '^paramd ready' && break
    sleep 0.1
done

check "it says that it is ready" says "paramd ready data=" podman logs "$NAME"
check "its health check passes" podman healthcheck run "$NAME"
check "it is no root" prints 65532 podman exec "$NAME" id -u
check "its root cannot be written" status_is 1 podman exec "$NAME" touch /written
check "the probe answers without a token" prints 200 http "http://127.0.0.1:$probe/readyz"
check "HTTP wants the token" prints 401 http "http://127.0.0.1:$admin/v1/info"
check "HTTP takes the token" prints 200 http -H "Authorization: Bearer $TOKEN" "http://127.0.0.1:$admin/v1/info"
check "the front door wants the token" status_is 5 without_token info
check "a store is created from outside" ctl call Create '{"store": "default", "type": "dist_async"}'
check "a key is created from outside" ctl put w '[1, 2, 3]'
check "an updater is set from outside" ctl updater set '{"type": "sgd", "learning_rate": 0.5}'
check "a push from outside is applied" says applied ctl push w '[2, 2, 2]' --wait
check "a pull from outside gets what came of it" says '"data": [0, 1, 2]' ctl get w --json
python3 - "$WORK/large.npy" <<'PYTHON'
import struct, sys
count = 4 << 20
head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}".ljust(117).encode() + b"\n"
with open(sys.argv[1], "wb") as file:
    file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(4 * count))
PYTHON
check "16 MiB go through the bulk door" ctl put large /data/large.npy
check "the log does not hold the token" status_is 1 grep -qF "$TOKEN" <(podman logs "$NAME" 2>&1)

begin=$(date +%s%N)
podman stop -t 10 "$NAME" >/dev/null
took=$((($(date +%s%N) - begin) / 1000000))
check "it ends within 10 s ($took ms)" test "$took" -lt 10000
check "and with 0" prints 0 podman inspect -f '{{.State.ExitCode}}' "$NAME"
check "having drained" says "told to stop" podman logs "$NAME"

# ---- the demo -------------------------------------------------------------------------------------------------------

if [ "${1:-}" = --compose ]; then
    compose=$(command -v podman-compose || true)
    [ -n "$compose" ] || { echo "podman-compose is not here: apt-get install podman-compose netavark aardvark-dns" >&2; exit 2; }
    made=no
    [ -e docker/token ] || { cp "$WORK/token" docker/token; chmod 644 docker/token; made=yes; }
    build daemon paramd
    build trainer paramd-trainer
    (cd docker && "$compose" -p paramd up -d --no-build) >"$WORK/up" 2>&1 || sed 's/^/        /' "$WORK/up"
    for i in 0 1 2 3; do
        check "trainer $i learns its digits and ends with 0" prints 0 timeout 300 podman wait "paramd_trainer-${i}_1"
        podman logs "paramd_trainer-${i}_1" 2>&1 | tail -1
    done
    (cd docker && "$compose" -p paramd down) >/dev/null 2>&1 || true
    podman network rm -f paramd_default >/dev/null 2>&1 || true
    [ "$made" = no ] || rm -f docker/token
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
