"""AWS's price list, which moto has not: https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from sandbox.fake_aws.answers import Answer
from sandbox.fake_aws.calls import Call

HOURLY = {"c7i.large": 0.1018, "t3.small": 0.024}
"""Instance type → USD an hour in eu-central-1, on demand, for Linux on shared hardware."""

_USUAL = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "operation": "RunInstances",
}
# What else the list has of the same type; some of it costs nothing.
_VARIANTS: tuple[tuple[dict[str, str], float], ...] = (
    ({}, 1.0),
    ({"operatingSystem": "Windows", "operation": "RunInstances:0002"}, 1.8),
    ({"preInstalledSw": "SQL Std", "operation": "RunInstances:0004"}, 6.0),
    ({"tenancy": "Dedicated"}, 1.1),
    ({"tenancy": "Host"}, 0.0),
    ({"capacitystatus": "AllocatedCapacityReservation"}, 0.0),
    ({"capacitystatus": "UnusedCapacityReservation"}, 1.0),
)


def price_list(call: Call, ask: Callable[[], Answer]) -> Answer:
    """Answer GetProducts, as a rule of the control plane."""
    if (call.service, call.action) != ("pricing", "GetProducts"):
        return ask()
    filters = {each["Field"]: each["Value"] for each in json.loads(call.parameters.get("Filters", "[]"))}
    found = [
        json.dumps(product)
        for product in _products()
        if all(product["product"]["attributes"].get(field) == value for field, value in filters.items())
    ]
    most = int(call.parameters.get("MaxResults", "100"))
    body = json.dumps({"FormatVersion": "aws_v1", "PriceList": found[:most]}).encode()
    headers = [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(body)))]
    return Answer(status="200 OK", headers=headers, body=body)


def _products() -> Iterator[dict[str, Any]]:
    for kind, hourly in HOURLY.items():
        for number, (differs, factor) in enumerate(_VARIANTS):
            sku = f"{kind.replace('.', '').upper()}{number:08d}"[:16]
            yield _product(sku, {**_USUAL, **differs, "instanceType": kind}, hourly * factor)


def _product(sku: str, attributes: dict[str, str], hourly: float) -> dict[str, Any]:
    place = {"regionCode": "eu-central-1", "location": "EU (Frankfurt)", "locationType": "AWS Region"}
    offer = f"{sku}.JRTCKXETXF"
    dimension = {
        "unit": "Hrs",
        "beginRange": "0",
        "endRange": "Inf",
        "rateCode": f"{offer}.6YS6EN2CT7",
        "appliesTo": [],
        "description": f"${hourly:.5f} per {attributes['instanceType']} Instance Hour",
        "pricePerUnit": {"USD": f"{hourly:.10f}"},
    }
    term = {
        "sku": sku,
        "offerTermCode": "JRTCKXETXF",
        "effectiveDate": "2025-11-01T00:00:00Z",
        "termAttributes": {},
        "priceDimensions": {dimension["rateCode"]: dimension},
    }
    return {
        "product": {
            "sku": sku,
            "productFamily": "Compute Instance",
            "attributes": {"servicecode": "AmazonEC2", **place, **attributes},
        },
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {offer: term}},
        "version": "20251114192411",
        "publicationDate": "2025-11-14T19:24:11Z",
    }
