"""A machine writes to the broker that the test reads."""

from __future__ import annotations

from pathlib import Path

import kafka as kafka_python
from kafka_brokers import Broker

from sandbox.fake_aws import FakeAws, MachineShape
from sandbox.launches import launch, user_data

SEND = """
import sys
sys.path.insert(0, "/opt/libraries")
from kafka import KafkaProducer
producer = KafkaProducer(bootstrap_servers="{address}", max_block_ms=20000)
producer.send("{topic}", b"from the machine").get(timeout=60)
producer.close()
"""


def test_a_machine_reaches_the_hosts_broker_at_its_address(
    aws: FakeAws, kafka: Broker, free_topic: str
) -> None:
    aws.expose(int(kafka.address.rpartition(":")[2]))
    aws.shape = MachineShape(
        mounts={"/opt/libraries": Path(kafka_python.__file__).parents[1]},
        files={"/opt/send.py": SEND.format(address=kafka.address, topic=free_topic)},
    )
    # The login prompt hangs up the console as it starts: what is written at that moment fails.
    runcmd = 'said=$(python3 /opt/send.py 2>&1)\nuntil echo "$said SENT" >/dev/console; do sleep 1; done'
    [machine] = launch(aws, UserData=user_data(runcmd=runcmd))
    machine.wait_for("SENT")

    assert [record.value for record in kafka.read(free_topic)] == [b"from the machine"]
