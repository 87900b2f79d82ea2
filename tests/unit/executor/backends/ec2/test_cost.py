"""What a job may cost: "at most" where that is a bound, "about" where it is not, and what is not in it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from executor.backends.ec2.launch.cost import Cost, dearest, is_bound, not_included, price
from executor.backends.ec2.launch.images import Image
from executor.backends.ec2.session import AwsSession

LINUX = Image(id="ami-1", architecture="x86_64", root_device="/", root_gib=8, operation="RunInstances")


@pytest.mark.parametrize(("bound", "word"), [(True, "at most"), (False, "about")])
def test_the_word_says_whether_it_is_a_bound(bound: bool, word: str) -> None:
    cost = Cost(
        instances=2,
        longest=timedelta(hours=3),
        hourly=0.5,
        origin="a list",
        bound=bound,
        excluded=("volumes", "traffic"),
    )

    assert cost.sentence() == (
        f"at most 6.0 instance hours, {word} 3.00 USD at 0.5000 USD an hour (a list); not in it: volumes, traffic"
    )


def test_of_several_types_the_dearest_is_the_bound() -> None:
    def cost(hourly: float | None, *, bound: bool = True, excluded: tuple[str, ...] = ("volumes",)) -> Cost:
        return Cost(
            instances=1,
            longest=timedelta(hours=2),
            hourly=hourly,
            origin="a list",
            bound=bound,
            excluded=excluded,
        )

    both = dearest([cost(0.5), cost(2.0), cost(1.0, bound=False, excluded=("volumes", "credits"))])

    assert (both.dollars, both.bound, both.excluded) == (4.0, False, ("volumes", "credits"))
    # nobody knows what a job costs at most that may get a machine without a price
    assert dearest([cost(2.0), cost(None)]).dollars is None


@pytest.mark.parametrize(
    ("kind", "request_", "expected"),
    [
        ("c7i.large", {}, {"volumes", "traffic", "public IPv4 addresses"}),
        ("c7i.large", {"NetworkInterfaces": [{"AssociatePublicIpAddress": False}]}, {"volumes", "traffic"}),
        (
            "c7i.large",
            {
                "Placement": {"Tenancy": "dedicated"},
                "NetworkInterfaces": [{"AssociatePublicIpAddress": False}],
            },
            {"volumes", "traffic", "the region's fee for dedicated instances"},
        ),
    ],
)
def test_what_is_paid_beside_is_named(kind: str, request_: dict[str, Any], expected: set[str]) -> None:
    assert set(not_included(kind, request_)) == expected


@pytest.mark.parametrize(
    ("kind", "bought", "bound"),
    [
        ("t3.small", None, False),
        ("t3.small", "standard", True),
        ("t2.small", None, True),
        ("t2.small", "unlimited", False),
        ("c7i.large", None, True),
    ],
)
def test_credits_that_are_bought_without_limit_leave_no_bound(
    kind: str, bought: str | None, bound: bool
) -> None:
    request = {"CreditSpecification": {"CpuCredits": bought}} if bought else {}

    assert is_bound(LINUX, not_included(kind, request)) is bound


def test_an_image_whose_licence_is_unknown_leaves_no_bound() -> None:
    unknown = Image(id="ami-1", architecture="x86_64", root_device="/", root_gib=8)
    sold = Image(**{**vars(LINUX), "marketplace": True})

    assert not is_bound(unknown, ())
    assert not is_bound(sold, ())


@pytest.mark.parametrize("region", ["cn-north-1", "us-gov-west-1"])
def test_the_price_list_is_not_asked_in_other_partitions(region: str) -> None:
    hourly, why = price("t3.small", {}, AwsSession(region))

    assert hourly is None
    assert "[prices]" in why


def test_a_host_has_no_price_of_an_instance() -> None:
    assert price("c7i.large", {}, AwsSession("us-east-1"), tenancy="host")[0] is None
