from __future__ import annotations

import time
from pathlib import Path

from failures import PanicException

from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import RunDir, write_json
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.sinks.job_store.node_store import NodeStore
from bai_agent.sinks.job_store.uploader import StoreUploader


class PanickingStore(DirectoryStore):
    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        raise PanicException(key)


def test_an_uploader_that_crashed_does_not_delay_the_end_of_a_run(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "run")
    rundir.path.mkdir()
    rundir.events.write_text('{"type": "phase"}\n')
    write_json(rundir.store_offset, {})
    place = NodeStore(record=JobRecord(PanickingStore(tmp_path / "store"), "job"), rank=0, attempt=0)
    uploader = StoreUploader(place, rundir)

    uploader.start()
    left = uploader.flush(time.monotonic() + 20)

    assert left.error == "the uploader ended because of an unexpected error; agent.log has the details"
    uploader.join(timeout=60)
    assert not uploader.is_alive()
    assert not uploader.publish(time.monotonic() + 86_400, is_first=True)
