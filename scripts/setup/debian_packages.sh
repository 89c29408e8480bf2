#!/bin/sh
# Install Debian packages without starting (or enabling) the services they bring. Needs root.
# usage: sudo sh scripts/setup/debian_packages.sh [PACKAGE...]
set -eu
[ $# -gt 0 ] || set -- prometheus prometheus-alertmanager haproxy
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

# While this script exits with 101, package scripts start no service. One that is already there is the machine's own rule.
policy=/usr/sbin/policy-rc.d
mark='# gpu-fleet setup: temporary, may be removed'
forget() { if grep -qsF "$mark" "$policy"; then rm -f "$policy"; fi; }
forget # of a run that was killed
if [ ! -e "$policy" ]; then
    trap forget EXIT
    trap 'exit 130' INT TERM HUP
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
    chmod 755 "$policy"
fi

# apt waits for dpkg's lock by itself, but not for the lock of its lists.
update() {
    tries=0
    until output=$(apt-get update 2>&1); do
        case $output in *"Could not get lock"*) ;; *) printf '%s\n' "$output"; return 1 ;; esac
        tries=$((tries + 1))
        [ "$tries" -le 24 ] || { echo "another apt still holds its lock after 2 minutes:"; printf '%s\n' "$output"; return 1; }
        echo "waiting for another apt to give its lock back ($((tries * 5)) s of 120 s)"
        sleep 5
    done
}

wanted=''
for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || wanted="$wanted $package"
done
[ -n "$wanted" ] || exit 0
install_them() {
    # shellcheck disable=SC2086 # names of packages hold no blanks
    apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=120 $wanted
}
install_them || { update && install_them; }

# Started by nobody now, and not at the next boot either: gpu-fleet starts its own, on loopback addresses.
if command -v systemctl >/dev/null; then
    for package in $wanted; do
        systemctl disable --now "$package" >/dev/null 2>&1 || true
    done
fi
