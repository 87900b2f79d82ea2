"""Changes to a machine's root file system from outside, before it boots."""

from __future__ import annotations

from pathlib import Path

from sandbox.fake_aws.machine import clock
from sandbox.fake_aws.machine.namespaces import Holder
from sandbox.fake_aws.machine.shape import MachineShape

_SERVICE = """[Unit]
Description={what}
DefaultDependencies=no
After=local-fs.target tmp.mount systemd-tmpfiles-setup.service
Before=cloud-init-local.service
[Service]
Type=oneshot
ExecStart={command}
[Install]
WantedBy=sysinit.target
"""
_LEFT_OUT = "/etc/cloud/cloud.cfg.d/98-left-out.cfg"
_LEAVE_OUT = """\
# Nobody logs in to these machines: the keys of the other kinds are an eighth of what a boot costs.
ssh_genkeytypes: [ed25519]
# They have no boot loader to tell of a disk.
grub_dpkg: {enabled: false}
"""
_DHCLIENT = "/etc/dhcp/dhclient.conf"
_SOON = "\n# A lost offer is asked for again at once.\ninitial-interval 1;\nbackoff-cutoff 2;\ntimeout {seconds};\n"
_DEBIAN_11 = "/sbin/dhclient"
_DEBIAN_11_KEPT = "/sbin/dhclient.debian"
_AGAIN = f"""#!/bin/sh
# Of some hundred clients of Debian 11 one hears no answer for as long as it lives; the next one does.
case " $* " in *" -r "* | *" -x "* | *" -6 "*) exec {_DEBIAN_11_KEPT} "$@" ;; esac
for attempt in $(seq 30); do
    {_DEBIAN_11_KEPT} -1 "$@" && exit 0
done
exit 2
"""


def write(root: Path, path: str, content: str | bytes) -> None:
    """Write a file of the machine; a symbolic link at `path` is replaced, never followed to this host."""
    target = _inside(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    content = content.encode() if isinstance(content, str) else content
    target.write_bytes(content)
    target.chmod(0o755 if content.startswith(b"#!") else 0o644)


def apply(shape: MachineShape, holder: Holder, root: Path) -> None:
    """Make the machine's root, mounted at `root` of the holder's namespace, what `shape` says."""
    seen = holder.path(root)
    for pattern in shape.remove:
        for path in seen.glob(pattern.lstrip("/")):
            holder.run("rm", "-rf", f"{root}/{path.relative_to(seen)}")
    for name, content in shape.files.items():
        write(seen, name, content)
    environment = dict(shape.environment)
    if shape.clock is not None:
        clock.install(seen)
        environment |= clock.ENVIRONMENT
    lines = "".join(f'DefaultEnvironment="{name}={value}"\n' for name, value in environment.items())
    write(seen, "/etc/systemd/system.conf.d/sandbox.conf", f"[Manager]\n{lines}")
    write(seen, _LEFT_OUT, _LEAVE_OUT)
    if _inside(seen, _DHCLIENT).exists():
        is_debian_11 = read(seen, "/etc/debian_version").startswith(b"11")
        if is_debian_11 and not _inside(seen, _DEBIAN_11_KEPT).exists():
            _inside(seen, _DEBIAN_11).rename(_inside(seen, _DEBIAN_11_KEPT))
            write(seen, _DEBIAN_11, _AGAIN)
        more = _SOON.format(seconds=10 if is_debian_11 else 300)
        write(seen, _DHCLIENT, read(seen, _DHCLIENT).decode() + more)
    if shape.tmp_read_only:
        remount = _SERVICE.format(what="Make /tmp read-only", command="/bin/mount -o remount,ro /tmp")
        write(seen, "/etc/systemd/system/sandbox-tmp.service", remount)
        wants = _inside(seen, "/etc/systemd/system/sysinit.target.wants/sandbox-tmp.service")
        wants.symlink_to("../sandbox-tmp.service")
    if shape.prepare:
        # The tests' own PATH leads nowhere in there.
        inside = ["chroot", str(root), "/usr/bin/env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        holder.run(*inside, "/bin/sh", "-euc", shape.prepare)


def read(root: Path, path: str) -> bytes:
    """Return the content of a file of the machine."""
    return _inside(root, path).read_bytes()


def _inside(root: Path, path: str) -> Path:
    """Return where `path` of the machine lies, links on the way resolved as the machine resolves them.

    The host's own resolving would follow an absolute link out of the machine, into the host's files.
    """
    ahead, behind = list(reversed(Path(path).parts[1:])), list[str]()
    while len(ahead) > 1:
        part = ahead.pop()
        here = root.joinpath(*behind, part)
        if part == "..":
            behind = behind[:-1]
        elif here.is_symlink():
            to = here.readlink()
            behind = [] if to.is_absolute() else behind
            ahead += reversed([each for each in to.parts if each != "/"])
        else:
            behind.append(part)
    return root.joinpath(*behind, *ahead)
