"""Lines of our user data are found in a console, whatever else is printed there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.backends.ec2.console import Console, Step, read_console


def test_lines_of_the_guardian_are_found_among_other_console_output() -> None:
    console = read_console(
        "edk2 firmware\x1b[2J\x1b[01;01H\r\n"
        "[    0.000000] Linux version 6.1\r\n"
        "half a line BAI 1 not ours\n"
        "BAI 0.1 guardian started\r\n"
        "[   12.345678] BAI 2.5 found Python 3.12\n"
        "\x1b[32mBAI 3 fetched the agent\x1b[0m\n"
        "BAI-END\nBAI none of ours\nBAI\n"
        "cloud-init: BAI-END not ours\n"
        "BAI-END fetch-denied HTTP 403 from S3\r\n"
        "reboot: Power down"
    )

    assert console.steps == (
        Step(0.1, "guardian started"),
        Step(2.5, "found Python 3.12"),
        Step(3.0, "fetched the agent"),
    )
    assert (console.end, console.detail) == ("fetch-denied", "HTTP 403 from S3")
    assert console.last_step == "fetched the agent"


def test_the_last_of_several_end_lines_counts() -> None:
    assert read_console("BAI-END boot-hung\nBAI-END too-many-boots\n").end == "too-many-boots"


def test_the_first_reason_of_the_guardian_is_kept_after_its_power_off() -> None:
    console = read_console("BAI-END no-python\r\nBAI 61.2 asked to end\r\nBAI-END terminated\r\n")

    assert console.end == "no-python"
    assert read_console("BAI 61.2 asked to end\r\nBAI-END terminated\r\n").end == "terminated"


def test_an_empty_console_has_no_steps_and_no_end() -> None:
    assert read_console("") == Console()
    assert read_console("").last_step is None
    assert not read_console("").others_only


KERNEL = "[    0.000000] Linux version 6.1.0\r\n[    0.000000] Kernel command line: ro console=tty0 console=ttyS0,115200n8\r\n"
FINISHED = "[   12.3] cloud-init[612]: Cloud-init v. 24.1 finished at Fri, 20 Nov 2026. Datasource DataSourceNone.  Up 12.31 seconds"
LOGIN = "Debian GNU/Linux 12 ip-10-0-0-1 ttyS0\r\n\r\nip-10-0-0-1 login: "


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (KERNEL + LOGIN, "ip-10-0-0-1 login:"),
        (KERNEL + LOGIN + "[   30.0] ena: link is up", "ip-10-0-0-1 login: [   30.0] ena: link is up"),
        (KERNEL + FINISHED, FINISHED),
        # Our boothook may have run: it has, what it wrote may be gone or spoiled, or it writes to a console that EC2 does not keep.
        (KERNEL + "BAI 0.01 boot 1 of at most 3\r\n" + LOGIN, ""),
        (KERNEL + "[ 12.3] ena: BAI 0.01 boot[ 12.4] 1 of at\r\n" + FINISHED, ""),
        (LOGIN, ""),
        (FINISHED, ""),
        (KERNEL.replace("console=ttyS0,115200n8", "console=ttyS0 console=tty0") + LOGIN, ""),
        (KERNEL.replace("console=tty0 console=ttyS0,115200n8", "quiet") + LOGIN, ""),
        # The boot goes on, or cloud-init was there and nobody knows how far it came.
        (KERNEL, ""),
        (KERNEL + "[  OK  ] Reached target cloud-init.target\r\n" + LOGIN, ""),
        (KERNEL + "Last login: Fri Nov 20 22:00:00", ""),
        ("", ""),
    ],
)
def test_a_boot_without_bais_user_data_is_reported_only_if_certain(content: str, line: str) -> None:
    assert read_console(content).ended_without_us == line


def test_quoted_console_lines_are_short_and_have_no_control_characters() -> None:
    console = read_console(f"BAI 1 {'x' * 1000}\nBAI-END de\x07ad\x08line up\x9b2J\n")

    assert len(console.steps[0].text) == 300
    assert console.end == "deadline"
    assert console.detail.isprintable()


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_binary_garbage_in_a_console_is_skipped(before: bytes, after: bytes) -> None:
    noise = [each.decode("utf-8", errors="replace").replace("BAI", "") for each in (before, after)]

    console = read_console(f"{noise[0]}\nBAI 7 a step\nBAI-END done 0\n{noise[1]}")

    assert console == Console((Step(7.0, "a step"),), "done", "0")


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    read_console(text)
