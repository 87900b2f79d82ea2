"""What a job may cost at most: the hours that its deadman allows, times what an hour costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from executor.ec2.session import FAILURES, Aws


@dataclass(frozen=True, kw_only=True)
class Cost:
    """An upper bound. Volumes and traffic are not in it."""

    instances: int
    longest: timedelta
    """For each instance."""
    hourly: float | None
    """USD for one instance; None where nobody knows."""
    origin: str
    """Where the price came from."""

    @property
    def hours(self) -> float:
        """Return how many instance hours may be paid."""
        return self.instances * self.longest.total_seconds() / 3600

    @property
    def dollars(self) -> float | None:
        return None if self.hourly is None else self.hours * self.hourly

    def sentence(self) -> str:
        """Return it for a person."""
        bound = f"at most {self.hours:,.1f} instance hours"
        if self.dollars is None:
            return f"{bound}; the price is unknown ({self.origin})"
        return f"{bound}, {self.dollars:,.2f} USD at {self.hourly:,.4f} USD an hour ({self.origin})"


def price(instance_type: str, prices: Mapping[str, float], aws: Aws | None) -> tuple[float | None, str]:
    """Return what an hour costs on demand, in USD, and where that is from: the configuration, or AWS's price list."""
    if instance_type in prices:
        return prices[instance_type], "from the configuration"
    if aws is None:
        return None, "no [prices] in the configuration, and no AWS to ask"
    filters = {
        "instanceType": instance_type,
        "regionCode": aws.region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    try:
        answer = aws.pricing().get_products(
            ServiceCode="AmazonEC2",
            Filters=[{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in filters.items()],
            MaxResults=10,
        )
        found = [_on_demand(json.loads(each)) for each in answer["PriceList"]]
    except (*FAILURES, ValueError, KeyError) as error:
        return None, f"the price list does not answer: {type(error).__name__}"
    known = [each for each in found if each]
    return (min(known), "AWS's price list, on demand") if known else (None, "not in AWS's price list")


def _on_demand(product: Mapping[str, Any]) -> float | None:
    """https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html"""
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if dimension.get("unit") == "Hrs":
                return float(dimension["pricePerUnit"]["USD"])
    return None
