"""An image with the agent baked in, booted with a job descriptor as it is for user data."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from instance_jobs import JOB, bundle

import bai_agent
from cloud_init.baked import bake
from sandbox.fake_aws import FakeAws, Machine
from sandbox.fake_aws.control_plane.images import DEBIAN, TRIXIE, MachineImage
from sandbox.fake_aws.machine.shape import MachineShape
from sandbox.launches import launch, user_data

DESCRIPTOR = f"""
# As a person writes it.
version = 1

[job]
id = "{JOB}"

[benchmark]
argv = ["true"]
"""


def baked(tmp_path: Path, *, agent: str) -> MachineShape:
    """Return the shape of machines of an image with `agent` in it, beside the real agent's reading of descriptors."""
    content = io.BytesIO(bundle(agent))
    archive = tmp_path / "bundle.tar.gz"
    with tarfile.open(fileobj=content) as old, tarfile.open(archive, "w:gz") as new:
        for member in old:
            new.addfile(member, old.extractfile(member))
        new.add(Path(bai_agent.__file__).parent, "bai_agent")
    root = tmp_path / "image"
    (root / "etc/cloud").mkdir(parents=True)
    bake(archive, root=root)
    files = {f"/{path.relative_to(root)}": path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return MachineShape(files=files)


def boot(aws: FakeAws, shape: MachineShape, content: bytes, image: MachineImage = DEBIAN) -> Machine:
    aws.shape = shape
    return launch(aws, ImageId=image.image_id, UserData=content)[0]


@pytest.mark.parametrize("image", [DEBIAN, TRIXIE])
def test_a_baked_image_runs_a_job_descriptor_given_as_user_data(
    aws: FakeAws, tmp_path: Path, image: MachineImage
) -> None:
    machine = boot(aws, baked(tmp_path, agent="end(0)"), DESCRIPTOR.encode(), image)
    machine.wait_off()
    assert "BAI-END done 0" in machine.console()
    assert machine.read("/var/lib/bai/job.toml") == DESCRIPTOR.encode()
    # 24 h, and the limits that a descriptor has by itself, and a quarter of an hour
    assert machine.read("/var/lib/bai/boot/limit") == b"92790\n"
    assert b"nodes=1\n" in machine.read("/var/lib/bai/boot/settings")
    assert not [call for call in aws.calls if call.identity == "instance"]


def test_a_job_on_a_baked_image_continues_after_a_reboot(aws: FakeAws, tmp_path: Path) -> None:
    agent = "os.system('reboot') or time.sleep(600) if starts == 1 else end(0)"
    machine = boot(aws, baked(tmp_path, agent=agent), DESCRIPTOR.encode())
    machine.wait_off()
    assert machine.exit_codes == [133, 0]
    assert "BAI-END done 0" in machine.console()


def test_an_invalid_descriptor_is_reported_on_the_console(aws: FakeAws, tmp_path: Path) -> None:
    machine = boot(aws, baked(tmp_path, agent="end(0)"), f"{DESCRIPTOR}\nargw = 1\n".encode())
    machine.wait_off()
    console = machine.console()
    assert 'user data: [benchmark] has no key "argw"' in console
    assert "BAI-END bad-descriptor" in console


def test_a_baked_machine_stays_on_only_with_power_stay(aws: FakeAws, tmp_path: Path) -> None:
    content = f'{DESCRIPTOR}\n[end]\npower = "stay"\n'.encode()
    machine = boot(aws, baked(tmp_path, agent="end(0)"), content)
    machine.wait_for("BAI-END done 0")
    until = "until [ -e /var/lib/bai/boot/stays ]; do sleep 0.1; done"
    assert machine.run(["timeout", "20", "sh", "-c", until]).returncode == 0


def test_a_baked_image_leaves_other_user_data_to_cloud_init(aws: FakeAws, tmp_path: Path) -> None:
    content = user_data(runcmd="echo MINE >/dev/console; poweroff")
    machine = boot(aws, baked(tmp_path, agent="end(0)"), content)
    machine.wait_off()
    assert "MINE" in machine.console()
    assert "BAI" not in machine.console()
