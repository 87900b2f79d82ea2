#!/bin/sh
# shellcheck disable=SC2154
# The deadman: on every boot, seconds before anything else of ours. It ends the machine at an absolute deadline, after too many
# boots, and when the guardian does not come; and it brings the guardian back. Nothing here may hold the boot.
# Set above: deadman_seconds, max_boots. cloud-init says INSTANCE_ID.
hung_seconds=1800 # from a boot to the guardian's start: package upgrades may lie between
poll_seconds=10
missing_polls=12  # how often the guardian is looked for in vain before it is started again: it also goes at a reboot

# An image made from an instance brings that one's state along.
read -r owner 2>/dev/null <"$state/instance" || owner=
if [ -n "${INSTANCE_ID:-}" ] && [ "$owner" != "$INSTANCE_ID" ]; then
    for left in boots boot_id deadline limit settings ended stays facts init_done; do
        rm -f "$state/$left"
    done
    rm -f "$root/job.toml"
    { printf '%s\n' "$INSTANCE_ID" >"$state/instance"; } 2>/dev/null
fi

# Once in each boot, however often cloud-init comes by.
this_boot=$(this_boot)
read -r known 2>/dev/null <"$state/boot_id" || known=
[ "$known" != "$this_boot" ] || exit 0
{ printf '%s\n' "$this_boot" >"$state/boot_id"; } 2>/dev/null
rm -f "$state/guardian.pid" "$state/agent.pid" "$state/clock_right"

# One byte for each boot: to append one needs no new block, so a full disk does not stop the count.
{ printf . >>"$state/boots"; } 2>/dev/null
boots=$(wc -c 2>/dev/null <"$state/boots") || boots=1
boots=$((${boots:-1}))

is_number() {
    case ${1:-x} in
    *[!0-9]*) return 1 ;;
    esac
}

start_guardian() {
    [ -r "$state/guardian.sh" ] && aside sh "$state/guardian.sh"
}

end() {
    print "BAI-END $*"
    power_off
}

# What is left goes by the time that the machine was on, which no clock can falsify. That it was off for a while counts too: by a
# clock that the guardian has found right, read once in each boot, as it may be set, and jump, at any other time.
deadman() {
    { echo -1000 >/proc/self/oom_score_adj; } 2>/dev/null
    read -r spent start 2>/dev/null <"$state/deadline" || spent=0 start=0
    is_number "$spent" || spent=0
    is_number "$start" || start=0
    missing=0 clock=
    while :; do
        now
        on=$(((now - begun) / 100))
        if [ -z "$clock" ] && [ -e "$state/clock_right" ]; then
            clock=$(date +%s)
            [ "$start" -gt 0 ] || start=$((clock - on - spent))
            [ $((clock - on - start)) -le "$spent" ] || spent=$((clock - on - start))
        fi
        read -r limit 2>/dev/null <"$state/limit" || limit=
        is_number "$limit" && [ "$limit" -le "$deadman_seconds" ] || limit=$deadman_seconds
        left=$((limit - spent - on))
        [ "$left" -gt 0 ] || end deadline
        # In place, in blocks that it has already, for a disk that is full.
        { printf '%15d %15d\n' $((spent + on)) "$start" 1<>"$state/deadline"; } 2>/dev/null
        [ ! -e "$state/stays" ] || exit 0
        watch_guardian
        [ "$left" -ge "$poll_seconds" ] || poll_seconds=$left
        sleep "$poll_seconds"
    done
}

watch_guardian() {
    if [ ! -e "$state/guardian.pid" ]; then
        [ "$on" -lt "$hung_seconds" ] || end boot-hung
    elif lives "$state/guardian.pid" guardian.sh; then
        missing=0
    else
        missing=$((missing + 1))
        if [ "$missing" -ge "$missing_polls" ]; then
            missing=0
            say "the guardian has gone; starting it again"
            start_guardian
        fi
    fi
}

# Whatever upgrades or refreshes by itself would do so under a benchmark. The masks go with this boot.
quiet() {
    # Amazon Linux asks its repositories at the first boot; others do not know this word, and complain about it in user data.
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

if [ "$boots" -gt "$max_boots" ]; then
    say "boot $boots of at most $max_boots"
    { end too-many-boots; } </dev/null >/dev/null 2>&1 &
    exit 0
fi
say "boot $boots of at most $max_boots"
{ deadman; } </dev/null >/dev/null 2>&1 &
quiet </dev/null >/dev/null 2>&1
# What starts the guardian does so once in an instance's life.
[ "$boots" -le 1 ] || start_guardian
exit 0
