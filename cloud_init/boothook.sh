#!/bin/sh
# shellcheck disable=SC2154
# Runs on every boot, seconds before anything else of ours. Starts the deadman, which ends the machine at an
# absolute deadline, after too many boots, and if the guardian does not start. Restarts the guardian. Nothing
# here may delay the boot.
# Set above: deadman (the program), deadman_seconds, max_boots. cloud-init sets INSTANCE_ID.

# An image made from an instance contains that instance's state.
read -r owner 2>/dev/null <"$state/instance" || owner=
if [ -n "${INSTANCE_ID:-}" ] && [ "$owner" != "$INSTANCE_ID" ]; then
    for left in boots boot_id deadline limit settings ended stays facts init_done; do
        rm -f "$state/$left"
    done
    rm -f "$root/job.toml"
    { printf '%s\n' "$INSTANCE_ID" >"$state/instance"; } 2>/dev/null
fi

# The rest runs once in each boot, however often cloud-init runs this script.
this_boot=$(this_boot)
read -r known 2>/dev/null <"$state/boot_id" || known=
[ "$known" != "$this_boot" ] || exit 0
{ printf '%s\n' "$this_boot" >"$state/boot_id"; } 2>/dev/null
rm -f "$state/guardian.pid" "$state/agent.pid" "$state/clock_right"

# The file has one byte for each boot. Appending a byte needs no new block, so a full disk does not stop the
# count.
{ printf . >>"$state/boots"; } 2>/dev/null
boots=$(wc -c 2>/dev/null <"$state/boots") || boots=1
boots=$((${boots:-1}))

start_guardian() {
    [ -r "$state/guardian.sh" ] && in_background sh "$state/guardian.sh"
}

# Runs the deadman with the first Python that works. If a Python fails, the next one is tried. The program is
# passed in the environment, so that it needs no disk and is in no list of processes.
# shellcheck disable=SC2154
deadman() {
    own_pythons
    for own_python in $own_pythons; do
        deadman=$deadman "$own_python" -I -B -c 'import os; exec(os.environ.pop("deadman"))' "$state" "$log" "$deadman_seconds" "$@" &&
            exit 0
    done
    print "BAI-END no-python"
    power_off
}

# Stops services that upgrade or refresh by themselves, because they would disturb a benchmark. The masks end
# with this boot.
quiet() {
    # Amazon Linux queries its repositories at the first boot. Other systems complain about this setting in
    # user data.
    if grep -q '^ID="*amzn' /etc/os-release; then
        echo 'repo_upgrade: none' >/etc/cloud/cloud.cfg.d/99-bai.cfg
    fi
    command -v systemctl >/dev/null || return
    set -- apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service unattended-upgrades.service \
        snapd.refresh.timer snapd.snap-repair.timer dnf-automatic.timer dnf-automatic-install.timer dnf-makecache.timer \
        packagekit.service fwupd-refresh.timer man-db.timer update-notifier-download.timer motd-news.timer e2scrub_all.timer \
        fstrim.timer
    timeout 10 systemctl --runtime --quiet mask "$@"
    timeout 10 systemctl --no-block stop "$@"
}

say "boot $boots of at most $max_boots"
if [ "$boots" -gt "$max_boots" ]; then
    { deadman too-many-boots; } </dev/null >/dev/null 2>&1 &
    exit 0
fi
{ deadman; } </dev/null >/dev/null 2>&1 &
# By default a kernel that panics hangs for ever, and so does the deadman. The reboot counts as a boot.
{ echo 10 >/proc/sys/kernel/panic; } 2>/dev/null
quiet </dev/null >/dev/null 2>&1
# cloud-init starts the guardian only once in an instance's life.
[ "$boots" -le 1 ] || start_guardian
exit 0
