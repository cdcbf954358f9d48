#!/bin/sh
# Makes the bases of our image where no registry can be reached, from the packages of this Debian machine's mirror:
#   sudo Dockerfiles/base.sh
#   docker build -f Dockerfiles/livescale.Dockerfile \
#     --build-arg BASE=livescale-base --build-arg BUILDER=livescale-builder -t livescale .
# livescale-base has Python and nothing else, livescale-builder a compiler too, livescale-prometheus Prometheus.
# With arguments only those are made. Needs root, debootstrap and a Docker engine.
set -eu

for program in debootstrap docker; do
    command -v "$program" >/dev/null || { echo "base.sh: needs $program, which is not installed" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "base.sh: needs root, as debootstrap does; run it by sudo" >&2; exit 1; }

sources=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true)
. /etc/os-release
suite=${SUITE:-$VERSION_CODENAME}
# The first mirror that apt has for this suite, in either form of its files.
mirror=${MIRROR:-$(printf '%s\n' "$sources" | awk -v suite="$suite" '
    $1 == "deb" { for (i = 2; i < NF; i++) if ($i ~ /^https?:/ && $(i + 1) == suite) { print $i; exit } }
    $1 == "URIs:" { uri = $2 }
    $1 == "Suites:" { for (i = 2; i <= NF; i++) if ($i == suite) { print uri; exit } }')}
[ -n "$mirror" ] || { echo "base.sh: apt has no mirror for $suite here; name one in MIRROR" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Imports a root file system without what only apt, readers of manuals and other languages need.
# $1: the image, $2: its packages, $3 and on: instructions of a Dockerfile.
make_image() {
    image=$1 packages=$2
    shift 2
    root=$work/$image
    debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" >"$work/log" 2>&1 || {
        tail -n 5 "$work/log" >&2
        echo "base.sh: debootstrap could not make $image" >&2
        exit 1
    }
    rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/cache/debconf/* "$root"/var/log/* \
        "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/*
    set -- "$@" 'ENV LANG=C.UTF-8'
    for change; do set -- "$@" --change "$change"; shift; done
    tar -C "$root" --one-file-system -c . | docker import "$@" - "$image" >/dev/null
    rm -rf "$root"
    docker image inspect --format "$image {{.Size}} bytes" "$image"
}

[ $# -gt 0 ] || set -- livescale-base livescale-builder livescale-prometheus
for image; do
    case $image in
    livescale-base) make_image "$image" ca-certificates,python3 ;;
    livescale-builder) make_image "$image" ca-certificates,python3,python3-venv,python3-dev,gcc,libc6-dev ;;
    livescale-prometheus) make_image "$image" prometheus 'ENTRYPOINT ["/usr/bin/prometheus"]' 'USER 65534' ;;
    *) echo "base.sh: $image is none of livescale-base, livescale-builder and livescale-prometheus" >&2; exit 2 ;;
    esac
done
