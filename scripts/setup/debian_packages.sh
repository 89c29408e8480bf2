#!/bin/sh
# Install Debian packages without starting or enabling their services. Needs root.
# usage: sudo sh scripts/setup/debian_packages.sh [PACKAGE...]
set -eu
[ $# -gt 0 ] || set -- prometheus prometheus-alertmanager haproxy
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

# While policy-rc.d exits with 101, package scripts start no service. An existing policy-rc.d is the machine's own: it is kept.
policy=/usr/sbin/policy-rc.d
mark='# gpu-fleet setup: temporary, may be removed'
forget() { if grep -qsF "$mark" "$policy"; then rm -f "$policy"; fi; }
forget # remove the file of a run that was killed
if [ ! -e "$policy" ]; then
    trap forget EXIT
    trap 'exit 130' INT TERM HUP
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
    chmod 755 "$policy"
fi

# apt waits for the lock of dpkg by itself, but not for the lock of its package lists.
update() {
    tries=0
    until output=$(apt-get update 2>&1); do
        case $output in *"Could not get lock"*) ;; *) printf '%s\n' "$output"; return 1 ;; esac
        tries=$((tries + 1))
        [ "$tries" -le 24 ] || { echo "another apt still holds its lock after 2 minutes:"; printf '%s\n' "$output"; return 1; }
        echo "waiting for another apt to release its lock ($((tries * 5)) s of 120 s)"
        sleep 5
    done
}

wanted=''
for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || wanted="$wanted $package"
done
[ -n "$wanted" ] || exit 0
install_them() {
    # shellcheck disable=SC2086 # names of packages contain no spaces
    apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=120 $wanted
}
install_them || { update && install_them; }

# Do not start the services at the next boot either: gpu-fleet starts its own processes, on loopback addresses.
if command -v systemctl >/dev/null; then
    for package in $wanted; do
        systemctl disable --now "$package" >/dev/null 2>&1 || true
    done
fi
